"""The same forward and backward pass as `tests.parity.reference`, in this project."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tests.parity.cases import ParityCase
from tests.parity.tensors import random_tensors
from zaya_jax.checkpoint.layouts import (
    tensors_from_variables,
    transformers_layout,
    variables_from_tensors,
)
from zaya_jax.model.outputs import HiddenStates
from zaya_jax.model.transformer import Transformer, head_logits
from zaya_jax.training.loss import loss_sums


@dataclasses.dataclass(frozen=True)
class OurRun:
    """Results of one case, to be held against a `ReferenceRun`."""

    states: HiddenStates
    logits: np.ndarray
    loss: float
    gradients: dict[str, np.ndarray]  # by released tensor name


def case_variables(case: ParityCase) -> dict:
    """The case's random tensors as a variables tree."""
    rules = transformers_layout(case.model)
    return variables_from_tensors(rules, case.model, random_tensors(case))


def our_run(case: ParityCase) -> OurRun:
    """Forward and backward of the case: every token but the last predicts the next one."""
    tokens = case.tokens()
    model = Transformer(case.model)
    variables = jax.tree.map(jnp.asarray, case_variables(case))
    targets = np.concatenate([tokens[:, 1:], np.zeros_like(tokens[:, :1])], axis=1)
    weights = np.ones(tokens.shape, np.float32)
    weights[:, -1] = 0.0
    host_batch = {
        "tokens": tokens,
        "targets": targets,
        "positions": np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape),
        "segment_ids": np.ones_like(tokens),
        "loss_weights": weights,
    }
    batch = {name: jnp.asarray(array) for name, array in host_batch.items()}

    def forward(own: dict) -> tuple[HiddenStates, jax.Array]:
        states = model.apply(own, tokens, method=Transformer.hidden_states)
        weight, bias = model.apply(own, method=Transformer.head)
        return states, head_logits(states.final, weight, bias)

    def loss(params: dict) -> jax.Array:
        sums = loss_sums(model, params, variables["balancing"], batch)
        return sums.objective / sums.weight

    states, logits = jax.jit(forward)(variables)
    value, gradients = jax.jit(jax.value_and_grad(loss))(variables["params"])
    rules = transformers_layout(case.model)
    named = tensors_from_variables(
        rules, case.model, {"params": gradients, "balancing": variables["balancing"]}
    )
    return OurRun(
        states=states,
        logits=np.asarray(logits),
        loss=float(value),
        gradients={name: g for name, g in named if not name.endswith("balancing_biases")},
    )
