"""Updates from rollouts: cuts change nothing, on-policy is exact, no signal moves nothing."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.rl.tiny_policy import MODEL, ONE_DEVICE, variables
from zaya_jax.model.transformer import Transformer
from zaya_jax.optimizer.settings import OptimizerConfig
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.losses import PolicyLossConfig
from zaya_jax.rl.packing import Rows, pack_rollouts
from zaya_jax.rl.records import Rollout
from zaya_jax.rl.trainer import PolicyState, PolicyTrainer

OPTIMIZER = OptimizerConfig(
    schedule="constant", peak_learning_rate=1e-2, warmup_steps=0, weight_decay=0.0
)
TRAINER = PolicyTrainer(MODEL, OPTIMIZER, PolicyLossConfig(), 100, ONE_DEVICE)
LENGTHS = [(2, 5), (3, 2), (1, 7), (4, 4), (2, 3)]


@functools.cache
def scored() -> Any:
    def run(made: Any, tokens: Any) -> Any:
        out = Transformer(MODEL).apply(made, tokens)
        return jax.nn.log_softmax(out.logits, axis=-1), out.routing.expert_index

    return jax.jit(run)


@functools.cache
def rollouts() -> tuple[Rollout, ...]:
    """Responses with the log-probabilities and routes of the tiny policy itself."""
    random, made = np.random.default_rng(0), []
    for prompt, length in LENGTHS:
        sequence = random.integers(0, MODEL.vocab_size, 12).astype(np.int32)
        table, routes = scored()(variables(), sequence[None])
        n = prompt + length
        log_probs = np.asarray(table)[0, np.arange(prompt - 1, n - 1), sequence[prompt:n]]
        made.append(
            Rollout(
                prompt=sequence[:prompt],
                tokens=sequence[prompt:n],
                log_probs=log_probs,
                versions=np.zeros(length, np.int32),
                routes=np.asarray(routes)[:, 0, : n - 1].T.astype(np.uint8),
                reward=1.0,
                truncated=False,
            )
        )
    return tuple(made)


ADVANTAGES = np.array([1.0, -1.0, 0.5, -0.5, 2.0])


def packed(members: slice = slice(None), *, advantage: float = 1.0) -> list[Rows]:
    return pack_rollouts(
        rollouts()[members],
        (advantage * ADVANTAGES)[members],
        np.full(len(LENGTHS), 0.1)[members],
        row_length=16,
        rows_per_microbatch=2,
        layers=MODEL.num_layers,
        num_experts=MODEL.num_experts,
        replay=True,
    )


@functools.cache
def start() -> PolicyState:
    return TRAINER.init(variables())


def test_the_first_step_on_policy_has_ratio_one_and_blocks_nothing() -> None:
    _, metrics = TRAINER.update(start(), packed())
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert (metrics["blocked"], metrics["flipped_routes"]) == (0, 0)
    assert metrics["kl_k3"] < 1e-9
    assert metrics["pearson"] > 0.999999
    assert metrics["response_tokens"] == 21


def test_neither_the_cut_nor_the_packing_changes_the_gradient() -> None:
    reference, _ = TRAINER.gradients(start(), packed())
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(reference))
    one_by_one = [rows for i in range(len(LENGTHS)) for rows in packed(slice(i, i + 1))]
    assert len(one_by_one) == 5
    assert len(packed()) == 1
    gradient, _ = TRAINER.gradients(start(), one_by_one)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6 * scale, rtol=0)


def test_the_gradient_is_that_of_the_weighted_log_probabilities() -> None:
    # On-policy, the loss has the gradient of -sum w A log pi; compare along one direction.
    gradient, _ = TRAINER.gradients(start(), packed())
    random = np.random.default_rng(3)
    direction = jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), gradient)

    def value(size: float) -> float:
        params = jax.tree.map(lambda p, d: p + size * d, start().params, direction)
        moved = dataclasses.replace(start(), params=params)
        _, reports = TRAINER.gradients(moved, packed())
        return -sum(
            float((np.asarray(r.log_probs) * rows["advantages"] * rows["loss_weights"]).sum())
            for r, rows in zip(reports, packed(), strict=True)
        )

    slope = (value(1e-3) - value(-1e-3)) / 2e-3
    along = sum(
        float((np.asarray(g) * d).sum())
        for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    assert along == pytest.approx(slope, rel=2e-2)


def test_updates_raise_what_was_rewarded_and_lower_what_was_not() -> None:
    state, before = start(), None
    for _ in range(3):
        state, metrics = TRAINER.update(state, packed())
        before = before if before is not None else metrics["loss"]
    _, reports = TRAINER.gradients(state, packed())
    change = sum(
        float(((np.asarray(r.log_probs) - rows["rollout_log_probs"]) * rows["advantages"]).sum())
        for r, rows in zip(reports, packed(), strict=True)
    )
    assert change > 0.1
    assert int(state.step) == 3


def test_a_learning_rate_of_zero_leaves_the_mismatch_flat() -> None:
    optimizer = dataclasses.replace(OPTIMIZER, peak_learning_rate=0.0, final_learning_rate=0.0)
    trainer = dataclasses.replace(TRAINER, optimizer=optimizer)
    state, found = trainer.init(variables()), set()
    for _ in range(50):
        state, metrics = trainer.update(state, packed())
        found.add((metrics["kl_k3"], metrics["ratio_max"]))
    assert len(found) == 1


def test_nothing_to_learn_moves_nothing_not_even_moments() -> None:
    state, metrics = TRAINER.update(start(), packed(advantage=0.0))
    assert metrics["skipped_update"] == 1
    assert int(state.step) == 1
    for a, b in zip(
        jax.tree.leaves((state.params, state.optimizer_state)),
        jax.tree.leaves((start().params, start().optimizer_state)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_balancing_biases_are_frozen() -> None:
    state, _ = TRAINER.update(start(), packed())
    np.testing.assert_array_equal(state.balancing["biases"], start().balancing["biases"])


def test_a_gradient_that_is_not_finite_stops_the_run() -> None:
    params = jax.tree.map(lambda x: x * np.nan, start().params)
    with pytest.raises(RLError, match=r"the policy gradient is nan at step 0"):
        TRAINER.update(dataclasses.replace(start(), params=params), packed())


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(RLError, match="nothing to train on"):
        TRAINER.update(start(), [])
