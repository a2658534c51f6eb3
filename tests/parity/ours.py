"""The same forward and backward pass as `tests.parity.reference`, in this project."""

from __future__ import annotations

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


def case_variables(case: ParityCase) -> dict:
    """The case's random tensors as a variables tree."""
    rules = transformers_layout(case.model)
    variables = variables_from_tensors(rules, case.model, random_tensors(case))
    return jax.tree.map(jnp.asarray, variables)


def our_forward(case: ParityCase) -> tuple[HiddenStates, np.ndarray]:
    """Hidden states, routing and logits of the case's tokens."""
    model, tokens = Transformer(case.model), case.tokens()

    def forward(variables: dict) -> tuple[HiddenStates, jax.Array]:
        states = model.apply(variables, tokens, method=Transformer.hidden_states)
        weight, bias = model.apply(variables, method=Transformer.head)
        return states, head_logits(states.final, weight, bias)

    states, logits = jax.jit(forward)(case_variables(case))
    return states, np.asarray(logits)


def our_loss_and_gradients(case: ParityCase) -> tuple[float, dict[str, np.ndarray]]:
    """Mean next-token loss as training computes it, and its gradients by released tensor name."""
    model, variables, batch = Transformer(case.model), case_variables(case), _batch(case)

    def loss(params: dict) -> jax.Array:
        sums = loss_sums(model, params, variables["balancing"], batch)
        return sums.objective / sums.weight

    value, gradients = jax.jit(jax.value_and_grad(loss))(variables["params"])
    rules = transformers_layout(case.model)
    named = tensors_from_variables(
        rules, case.model, {"params": gradients, "balancing": variables["balancing"]}
    )
    return float(value), {n: g for n, g in named if not n.endswith("balancing_biases")}


def _batch(case: ParityCase) -> dict[str, jax.Array]:
    """Every token but a row's last predicts the next one."""
    tokens = case.tokens()
    weights = np.ones(tokens.shape, np.float32)
    weights[:, -1] = 0.0
    batch = {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, axis=1),
        "positions": np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape),
        "segment_ids": np.ones_like(tokens),
        "loss_weights": weights,
    }
    return {name: jnp.asarray(array) for name, array in batch.items()}
