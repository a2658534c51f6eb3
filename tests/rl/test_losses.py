"""Policy losses: published vectors, gradients by finite differences, packing."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.losses import LOSSES, PolicyLossConfig, PolicyTokens
from zaya_jax.rl.losses.dppo import dppo_binary_tv
from zaya_jax.rl.losses.gspo import gspo
from zaya_jax.rl.losses.ppo import ppo_clip
from zaya_jax.rl.losses.tokens import log_ratio

# advantage, mu, pi, kept, weight on grad log pi, does PPO with 0.2 mask it
VECTORS = [
    (+1, 0.50, 0.58, True, 1.16, False),
    (+1, 0.50, 0.65, False, 0.0, True),
    (+1, 0.50, 0.35, True, 0.70, False),
    (-1, 0.50, 0.45, True, -0.90, False),
    (-1, 0.50, 0.35, False, 0.0, True),
    (-1, 0.50, 0.70, True, -1.40, False),
    (+1, 0.001, 0.05, True, 20.0, True),
    (+1, 0.001, 0.15, False, 0.0, True),
    (-1, 0.90, 0.75, False, 0.0, False),
    (-1, 0.02, 0.0001, True, -0.005, True),
]
CONFIG = PolicyLossConfig()


def tokens_of(advantages: list, mu: list, pi: list) -> PolicyTokens:
    count = len(mu)
    return PolicyTokens(
        log_probs=jnp.log(jnp.array([pi])),
        rollout_log_probs=jnp.log(jnp.array([mu])),
        advantages=jnp.array([advantages], dtype=jnp.log(jnp.array([mu])).dtype),
        mask=jnp.ones((1, count), bool),
        segment_ids=jnp.ones((1, count), jnp.int32),
    )


def total(loss: Callable, tokens: PolicyTokens, config: PolicyLossConfig = CONFIG) -> Callable:
    return lambda log_probs: jnp.sum(loss(tokens._replace(log_probs=log_probs), config).loss)


def test_dppo_keeps_and_weighs_tokens_as_published() -> None:
    advantages, mu, pi, kept, weight, _ = zip(*VECTORS, strict=True)
    tokens = tokens_of(list(advantages), list(mu), list(pi))
    assert dppo_binary_tv(tokens, CONFIG).kept[0].tolist() == list(kept)
    gradient = jax.grad(total(dppo_binary_tv, tokens))(tokens.log_probs)
    np.testing.assert_allclose(-gradient[0], weight, rtol=1e-4)


def test_ppo_masks_other_tokens_than_dppo() -> None:
    advantages, mu, pi, _, _, masked = zip(*VECTORS, strict=True)
    tokens = tokens_of(list(advantages), list(mu), list(pi))
    assert (~ppo_clip(tokens, CONFIG).kept[0]).tolist() == list(masked)


def test_the_sides_of_the_dppo_mask_have_their_own_bounds_and_keep_equality() -> None:
    tokens = tokens_of([1, 1, -1, -1], [0.5] * 4, [0.75, 0.7501, 0.375, 0.3749])
    config = PolicyLossConfig(delta_low=0.125, delta_high=0.25)
    assert dppo_binary_tv(tokens, config).kept[0].tolist() == [True, False, True, False]


def random_tokens(seed: int = 0, seq: int = 12) -> PolicyTokens:
    """Two rows of packed prompts and responses, one sequence unlike the next."""
    random = np.random.default_rng(seed)
    segment_ids = np.array([[1] * 5 + [2] * 7, [1] * 8 + [0] * 4])
    mask = np.array([[0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1], [0] * 3 + [1] * 5 + [0] * 4], bool)
    by_sequence = np.array([[0.0, 0.9, -1.3], [0.0, 2.0, 0.0]])
    old = np.log(random.uniform(0.05, 0.9, (2, seq)))
    return PolicyTokens(
        log_probs=jnp.asarray(old + random.normal(0, 0.25, (2, seq))),
        rollout_log_probs=jnp.asarray(old),
        advantages=jnp.asarray(np.take_along_axis(by_sequence, segment_ids, axis=1)),
        mask=jnp.asarray(mask),
        segment_ids=jnp.asarray(segment_ids, jnp.int32),
    )


def surrogate(name: str, tokens: PolicyTokens) -> Callable[[np.ndarray], float]:
    """What each loss is the gradient of, in numpy: detached factors held where they are."""
    old, advantages = np.asarray(tokens.rollout_log_probs), np.asarray(tokens.advantages)
    mask, segments = np.asarray(tokens.mask), np.asarray(tokens.segment_ids)
    now = np.asarray(tokens.log_probs)
    ratio = np.exp(now - old)
    delta = np.exp(now) - np.exp(old)
    inside = np.where(advantages > 0, delta <= 0.1, delta >= -0.1)

    def value(x: np.ndarray) -> float:
        live = np.exp(x - old)
        if name == "gspo":
            for row, segment in ((0, 1), (0, 2), (1, 1)):
                here = mask[row] & (segments[row] == segment)
                live[row, here] = np.exp((x - old)[row, here].mean())
        if name in ("ppo_clip", "gspo"):
            clipped = np.clip(live, 0.8, 1.2)
            per_token = -np.minimum(live * advantages, clipped * advantages)
        elif name == "cispo":
            per_token = -np.clip(ratio, 0.8, 1.2) * advantages * x
        else:
            per_token = -advantages * np.minimum(ratio, 20.0) * inside * x
        return float(per_token[mask].sum())

    return value


@pytest.mark.parametrize("name", LOSSES.names)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    with jax.enable_x64(True):
        tokens = random_tokens()
        assert tokens.log_probs.dtype == jnp.float64
        objective = total(LOSSES.resolve(name), tokens)
        reference = surrogate(name, tokens)
        start = np.asarray(tokens.log_probs)
        gradient = np.asarray(jax.jit(jax.grad(objective))(tokens.log_probs))
        assert float(objective(tokens.log_probs)) == pytest.approx(reference(start), abs=1e-12)
        for index in np.ndindex(start.shape):
            step = np.zeros_like(start)
            step[index] = 1e-6
            slope = (reference(start + step) - reference(start - step)) / 2e-6
            assert gradient[index] == pytest.approx(slope, abs=1e-8), index


@pytest.mark.parametrize("name", LOSSES.names)
def test_the_first_step_on_policy_is_the_plain_policy_gradient(name: str) -> None:
    tokens = random_tokens()
    tokens = tokens._replace(rollout_log_probs=tokens.log_probs)
    loss = LOSSES.resolve(name)
    assert bool(loss(tokens, CONFIG).kept.all())
    gradient = np.asarray(jax.grad(total(loss, tokens))(tokens.log_probs))
    expected = -np.asarray(tokens.advantages) * np.asarray(tokens.mask)
    if name == "gspo":  # each token carries its share of the sequence's mean
        assert gradient.sum() == pytest.approx(expected.sum(), rel=1e-5)
    else:
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES.names)
def test_nothing_outside_the_response_reaches_loss_or_gradient(name: str) -> None:
    tokens = random_tokens()
    outside = ~tokens.mask
    wild = tokens._replace(
        log_probs=jnp.where(outside, -jnp.inf, tokens.log_probs),
        rollout_log_probs=jnp.where(outside, jnp.nan, tokens.rollout_log_probs),
    )
    loss = LOSSES.resolve(name)
    np.testing.assert_array_equal(loss(wild, CONFIG).loss, loss(tokens, CONFIG).loss)
    gradient = jax.grad(total(loss, wild))(wild.log_probs)
    assert np.all(np.isfinite(gradient))
    assert np.all(np.asarray(gradient)[np.asarray(outside)] == 0)


@pytest.mark.parametrize("name", LOSSES.names)
def test_packed_sequences_lose_the_same_as_alone(name: str) -> None:
    tokens = random_tokens()
    loss = LOSSES.resolve(name)
    packed = np.asarray(loss(tokens, CONFIG).loss)
    for row, part in ((0, slice(0, 5)), (0, slice(5, 12)), (1, slice(0, 8))):
        alone = PolicyTokens(*(x[row : row + 1, part] for x in tokens))
        alone = alone._replace(segment_ids=jnp.ones_like(alone.segment_ids))
        np.testing.assert_allclose(loss(alone, CONFIG).loss[0], packed[row, part], atol=1e-6)


def test_extreme_log_ratios_stay_finite() -> None:
    tokens = tokens_of([1.0, -1.0], [1e-30, 0.9], [0.9, 1e-30])
    for name in LOSSES.names:
        value, gradient = jax.value_and_grad(total(LOSSES.resolve(name), tokens))(tokens.log_probs)
        assert np.isfinite(value), name
        assert np.all(np.isfinite(gradient)), name


def test_gspo_of_sequences_of_one_token_is_ppo() -> None:
    tokens = random_tokens()
    each = jnp.arange(1, 13, dtype=jnp.int32)[None, :].repeat(2, axis=0)
    tokens = tokens._replace(segment_ids=each, mask=jnp.ones((2, 12), bool))
    for found, expected in zip(gspo(tokens, CONFIG), ppo_clip(tokens, CONFIG), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_log_ratios_are_cut_at_twenty_and_are_nothing_outside_the_response() -> None:
    tokens = tokens_of([1, 1, 1, 1], [1.0] * 4, [1.0] * 4)
    tokens = tokens._replace(
        log_probs=jnp.array([[30.0, -30.0, 19.5, 30.0]]),
        mask=jnp.array([[True, True, True, False]]),
    )
    assert log_ratio(tokens)[0].tolist() == [20.0, -20.0, 19.5, 0.0]


def test_a_bound_that_is_not_positive_is_refused() -> None:
    with pytest.raises(RLError, match=r"delta_low=0\.0: must be positive"):
        PolicyLossConfig(delta_low=0.0)


def test_dppo_keeps_what_is_exactly_at_its_bounds() -> None:
    tokens = tokens_of([1, -1], [0.0, 1.0], [1.0, 0.0])  # risen and fallen by exactly 1
    at_bounds = PolicyLossConfig(delta_low=1.0, delta_high=1.0)
    assert dppo_binary_tv(tokens, at_bounds).kept[0].tolist() == [True, True]
    below = PolicyLossConfig(delta_low=0.99, delta_high=0.99)
    assert dppo_binary_tv(tokens, below).kept[0].tolist() == [False, False]


def test_dppo_takes_an_advantage_of_zero_for_a_negative_one() -> None:
    tokens = tokens_of([0, 0, 1], [0.5] * 3, [0.7, 0.3, 0.3])
    assert dppo_binary_tv(tokens, CONFIG).kept[0].tolist() == [True, False, True]
