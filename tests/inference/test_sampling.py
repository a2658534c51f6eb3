"""Draws follow their distributions; what filters keep agrees with a plain numpy definition."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from zaya_jax.inference.sampling import (
    RowSampling,
    Sampled,
    Variant,
    keep_likely,
    mark_seen,
    sample,
)

VOCAB = 12
ROWS = 4_000


def settings(rows: int, **changes: Any) -> RowSampling:
    base = RowSampling(
        seed=np.stack([np.zeros(rows), np.arange(rows)], axis=1).astype(np.uint32),
        temperature=np.ones(rows, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
        repetition_penalty=np.ones(rows, np.float32),
        seen=None,
        bias=None,
    )
    typed = {
        name: np.broadcast_to(value, (rows, *np.shape(value)))
        if np.ndim(value)
        else np.full(rows, value, getattr(base, name).dtype)
        for name, value in changes.items()
    }
    return base._replace(**typed)


@functools.partial(jax.jit, static_argnums=4)
def _sample(
    logits: jax.Array, allowed: jax.Array, rows: RowSampling, drawn: jax.Array, variant: Variant
) -> Sampled:
    return sample(logits, allowed, rows, drawn, variant)


def draw(logits: np.ndarray, rows: RowSampling, *, allowed: Any = None, top: int = 0) -> Sampled:
    count = len(rows.temperature)
    return _sample(
        jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, len(logits))),
        jnp.ones(len(logits), bool) if allowed is None else jnp.asarray(allowed),
        rows,
        jnp.arange(count, dtype=jnp.int32) % 7,
        Variant(True, True, top),
    )


def oracle(
    logits: np.ndarray,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray:
    """The distribution by definition, float64, one filter after the other."""
    scaled = np.asarray(logits, np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    if top_k:
        p = np.where(p >= np.sort(p)[::-1][min(top_k, len(p)) - 1], p, 0)
        p /= p.sum()
    if top_p < 1:
        reached, least = 0.0, p.max()
        for value in np.sort(p)[::-1]:
            if reached < top_p:
                reached, least = reached + value, min(least, value)
        p = np.where(p >= least, p, 0)
        p /= p.sum()
    p = np.where(p >= min_p * p.max(), p, 0)
    return p / p.sum()


# 99.99% quantiles of the chi-squared distribution by degrees of freedom.
CHI_SQUARED = [0.0, 15.14, 18.42, 21.11, 23.51, 25.74, 27.86, 29.88, 31.83, 33.72, 35.56, 37.37]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 0.7, "top_k": 6, "top_p": 0.9, "min_p": 0.1},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_draws_follow_the_exact_distribution(changes: dict[str, Any]) -> None:
    logits = np.random.default_rng(1).normal(size=VOCAB)
    expected = oracle(logits, **changes)
    drawn = draw(logits, settings(ROWS, **changes))
    counts = np.bincount(drawn.token, minlength=VOCAB)
    assert not np.any(counts[expected == 0])
    possible = expected > 0
    wanted = ROWS * expected[possible]
    statistic = np.sum((counts[possible] - wanted) ** 2 / wanted)
    assert statistic < CHI_SQUARED[int(possible.sum()) - 1]
    wanted = np.log(expected[np.asarray(drawn.token)])
    np.testing.assert_allclose(drawn.log_probability, wanted, atol=1e-5)
    raw = np.log(oracle(logits))[drawn.token]
    np.testing.assert_allclose(drawn.raw_log_probability, raw, atol=1e-5)


# Eighths: every sum is exact in float32, so no rounding decides what is kept, and ties abound.
eighths = st.lists(st.integers(0, 8), min_size=6, max_size=6).filter(any)


@hypothesis.given(
    weights=eighths,
    top_k=st.integers(0, 7),
    top_p=st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0]),
    min_p=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
@hypothesis.settings(deadline=None, max_examples=150)
def test_filters_match_the_definition_with_ties(
    weights: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    probabilities = np.asarray(weights, np.float32)
    kept = np.asarray(
        _keep(probabilities[None], np.int32(top_k), np.float32(top_p), np.float32(min_p))
    )[0]
    np.testing.assert_array_equal(kept > 0, _kept_exactly(weights, top_k, top_p, min_p))


def _kept_exactly(weights: list[int], top_k: int, top_p: float, min_p: float) -> list[bool]:
    """The oracle in whole numbers and fractions: shares in floating point would break ties."""
    p = [Fraction(weight) for weight in weights]
    if top_k:
        least = sorted(p, reverse=True)[min(top_k, len(p)) - 1]
        p = [value if value >= least else Fraction(0) for value in p]
    if top_p < 1:
        reached, least, enough = Fraction(0), max(p), Fraction(top_p) * sum(p)
        for value in sorted(p, reverse=True):
            if reached < enough:
                reached, least = reached + value, min(least, value)
        p = [value if value >= least else Fraction(0) for value in p]
    return [value > 0 and value >= Fraction(min_p) * max(p) for value in p]


@jax.jit
def _keep(probabilities: jax.Array, top_k: Any, top_p: Any, min_p: Any) -> jax.Array:
    """Unnormalised weights are as good: every rule compares shares."""
    return keep_likely(probabilities, top_k[None], top_p[None], min_p[None])


def test_greedy_takes_the_likeliest_and_the_lowest_of_equals() -> None:
    drawn = draw(np.array([0.0, 3.0, 3.0, 1.0]), settings(5, temperature=0.0))
    assert np.all(drawn.token == 1)
    assert np.all(drawn.log_probability == 0)


def test_a_draw_depends_on_seed_and_count_only() -> None:
    logits = np.random.default_rng(2).normal(size=VOCAB)
    many = draw(logits, settings(21))
    row = settings(21)
    alone = _sample(
        jnp.asarray(logits, jnp.float32)[None],
        jnp.ones(VOCAB, bool),
        jax.tree.map(lambda column: column[9:10], row),
        jnp.asarray([9 % 7], jnp.int32),
        Variant(True, False, 0),
    )
    assert int(alone.token[0]) == int(many.token[9])


def test_forbidden_tokens_are_never_drawn() -> None:
    allowed = np.arange(VOCAB) % 3 == 0
    for temperature in (0.0, 1.0):
        drawn = draw(np.ones(VOCAB), settings(500, temperature=temperature), allowed=allowed)
        assert np.all(np.asarray(drawn.token) % 3 == 0)


def test_penalty_and_bias_move_the_logits() -> None:
    logits = np.array([2.0, 1.5, -1.0, -3.0])
    seen = np.array([True, False, True, False])
    bias = np.array([0.0, 0.0, 0.0, 2.5], np.float32)
    rows = settings(8, repetition_penalty=2.0, seen=seen, bias=bias)
    drawn = draw(logits, rows)
    expected = np.log(oracle(np.array([1.0, 1.5, -2.0, -0.5])))
    np.testing.assert_allclose(drawn.log_probability, expected[drawn.token], atol=1e-5)


def test_top_alternatives_are_the_models_own() -> None:
    logits = np.random.default_rng(3).normal(size=VOCAB)
    drawn = draw(logits, settings(2, top_k=1), top=3)
    order = np.argsort(-logits)[:3]
    np.testing.assert_array_equal(drawn.top_tokens, np.stack([order, order]))
    raw = np.log(oracle(logits))[order]
    np.testing.assert_allclose(drawn.top_log_probabilities, np.stack([raw, raw]), atol=1e-5)


def test_drawn_tokens_are_marked_and_no_others() -> None:
    before = np.array([[False, True, False, False], [False] * 4, [True, False, False, True]])
    after = mark_seen(jnp.asarray(before), jnp.asarray([2, 0, -1]))
    expected = [[False, True, True, False], [True, False, False, False], before[2].tolist()]
    assert np.asarray(after).tolist() == expected
