"""The balancing controller against its definition."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.config import ConfigError
from zaya_jax.optimizer.balancing import (
    balancing_optimizer,
    init_balancing,
    load_error,
    update_balancing,
)
from zaya_jax.optimizer.settings import OptimizerConfig

COUNTS = jnp.asarray([[6.0, 1.0, 1.0, 0.0, 12.0], [2.0, 2.0, 2.0, 2.0, 0.0]])
BIASES = jnp.asarray([[0.0, 0.1, -0.1, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0, -1.0]])


def _updated(config: OptimizerConfig, counts: jnp.ndarray, steps: int = 1) -> np.ndarray:
    optimizer, biases = balancing_optimizer(config), BIASES
    state = init_balancing(optimizer, biases)
    for _ in range(steps):
        biases, state = update_balancing(optimizer, biases, state, counts)
    return np.asarray(biases)


def test_load_is_over_real_experts_only():
    expected = np.asarray([[6, 1, 1, 0], [2, 2, 2, 2]]) / 8 - 0.25
    np.testing.assert_allclose(load_error(COUNTS), expected, atol=1e-7)


def test_overused_experts_lose_bias_and_unused_ones_gain():
    change = _updated(OptimizerConfig(), COUNTS) - np.asarray(BIASES)
    assert change[0, 0] < 0
    assert (change[0, 1:4] > 0).all()


def test_first_step_is_one_learning_rate_by_the_sign_of_the_error():
    change = _updated(OptimizerConfig(balancing_learning_rate=0.01), COUNTS) - np.asarray(BIASES)
    np.testing.assert_allclose(change[0, :4], [-0.01, 0.01, 0.01, 0.01], rtol=1e-4)


def test_equals_adam_written_out():
    config = OptimizerConfig(balancing_learning_rate=0.02, balancing_weight_decay=0.1)
    error = np.asarray(load_error(COUNTS), np.float64)
    bias, mean, square = np.asarray(BIASES, np.float64)[:, :4], 0.0, 0.0
    for step in range(1, 6):
        mean = 0.9 * mean + 0.1 * error
        square = 0.999 * square + 0.001 * error**2
        direction = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        bias = bias - 0.02 * (direction + 0.1 * bias)
    # float32 knows 1 - 0.999 to 5 digits only
    np.testing.assert_allclose(_updated(config, COUNTS, steps=5)[:, :4], bias, atol=3e-6)


def test_even_load_moves_nothing():
    np.testing.assert_array_equal(_updated(OptimizerConfig(), COUNTS)[1], BIASES[1])


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_skip_bias_never_moves(decay: float):
    config = OptimizerConfig(balancing_weight_decay=decay)
    assert (_updated(config, COUNTS, steps=3)[:, -1] == -1.0).all()


def test_a_layer_where_every_token_skips_moves_nothing():
    counts = jnp.asarray([[0.0, 0.0, 0.0, 0.0, 20.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(_updated(OptimizerConfig(), counts), BIASES)


def test_sign_rule_moves_every_expert_by_one_rate():
    config = OptimizerConfig(balancing_rule="sign", balancing_learning_rate=0.01)
    change = _updated(config, COUNTS, steps=3) - np.asarray(BIASES)
    np.testing.assert_allclose(change[0, :4], [-0.03, 0.03, 0.03, 0.03], rtol=1e-4)
    np.testing.assert_array_equal(change[:, -1], 0.0)


def test_pid_rule_equals_its_formula():
    """Summed changes are the controller's output on errors that differ from step to step."""
    config = OptimizerConfig(
        balancing_rule="pid",
        balancing_learning_rate=0.1,
        balancing_proportional=0.5,
        balancing_integral=0.25,
        balancing_derivative=2.0,
    )
    optimizer, biases = balancing_optimizer(config), BIASES
    state = init_balancing(optimizer, biases)
    counts = [COUNTS, COUNTS[:, ::-1], COUNTS[:, [1, 2, 0, 4, 3]]]
    for step_counts in counts:
        biases, state = update_balancing(optimizer, biases, state, step_counts)
    errors = [4 * np.asarray(load_error(c), np.float64) for c in counts]
    output = 0.5 * errors[-1] + 0.25 * sum(errors) + 2.0 * (errors[-1] - errors[-2])
    np.testing.assert_allclose(biases[:, :4], np.asarray(BIASES)[:, :4] - 0.1 * output, atol=1e-6)


@pytest.mark.parametrize("rule", ["adamw", "sign", "pid"])
def test_every_rule_evens_out_a_biased_router(rule: str):
    """Tokens choose by score plus bias; scores favour some experts."""
    config = OptimizerConfig(balancing_rule=rule, balancing_learning_rate=0.02)
    optimizer = balancing_optimizer(config)
    scores = np.random.default_rng(0).normal(size=(512, 4)) * 0.1 + np.asarray(
        [0.3, 0.1, 0.0, -0.2]
    )
    biases = jnp.zeros((1, 5))
    state = init_balancing(optimizer, biases)
    for _ in range(150):
        chosen = np.argmax(scores + np.asarray(biases)[0, :4], axis=-1)
        counts = np.bincount(chosen, minlength=5).astype(np.float32)[None]
        biases, state = update_balancing(optimizer, biases, state, jnp.asarray(counts))
    assert counts[0, :4].max() < 1.35 * 512 / 4


def test_a_rate_of_its_own_schedule_warms_up_and_falls():
    config = OptimizerConfig(
        balancing_rule="sign",
        balancing_learning_rate=1.0,
        balancing_final_learning_rate=0.0,
        balancing_warmup_steps=1,
    )
    optimizer, biases = balancing_optimizer(config, 4), jnp.zeros((1, 5))
    state = init_balancing(optimizer, biases)
    moved = []
    for _ in range(4):
        new, state = update_balancing(optimizer, biases, state, COUNTS[:1])
        moved.append(float(biases[0, 0] - new[0, 0]))
        biases = new
    np.testing.assert_allclose(moved, [0.5, 1.0, 0.5, 0.0], atol=1e-6)


def test_a_warmup_longer_than_the_run_is_refused():
    config = OptimizerConfig(balancing_warmup_steps=9)
    with pytest.raises(ConfigError, match=r"balancing_warmup_steps=9.*train\.steps=5"):
        balancing_optimizer(config, 5)
