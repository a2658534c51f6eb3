"""Statistics against enumeration and closed forms."""

from __future__ import annotations

import collections
import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zaya_jax.evaluation.statistics import (
    bootstrap_interval,
    majority_at_k,
    pass_at_k,
    powers_up_to,
    standard_error,
)


def enumerated_majority(answers: list[str | None], right: list[bool], k: int) -> float:
    shares = []
    for subset in itertools.combinations(range(len(answers)), k):
        votes = collections.Counter(answers[i] for i in subset if answers[i] is not None)
        most = max(votes.values(), default=0)
        elected = [answer for answer, count in votes.items() if count == most]
        marks = [right[answers.index(answer)] for answer in elected]
        shares.append(sum(marks) / len(marks) if marks else 0.0)
    return statistics.mean(shares)


@pytest.mark.parametrize(("samples", "right"), [(5, 0), (5, 2), (5, 5), (7, 3), (1, 1)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(samples: int, right: int) -> None:
    marks = [i < right for i in range(samples)]
    for k in range(1, samples + 1):
        subsets = list(itertools.combinations(marks, k))
        assert pass_at_k(samples, right, k) == pytest.approx(
            sum(any(s) for s in subsets) / len(subsets)
        )


def test_pass_at_k_is_unbiased() -> None:
    """Over all outcomes of n independent samples its mean is 1 - (1 - p)^k."""
    n, p = 6, 0.3
    for k in (1, 2, 4, 6):
        mean = sum(
            math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1)
        )
        assert mean == pytest.approx(1 - (1 - p) ** k)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=7), st.data())
def test_majority_at_k_is_the_mean_over_all_subsets(answers: list[str | None], data) -> None:
    k = data.draw(st.integers(1, len(answers)))
    winners = data.draw(st.sets(st.sampled_from("abcd")))
    right = [answer in winners for answer in answers]
    assert majority_at_k(answers, right, k) == pytest.approx(
        enumerated_majority(answers, right, k), abs=1e-12
    )


def test_a_vote_among_two_answers_is_binomial() -> None:
    """With a huge pool a vote of 3 is right with 3 p^2 - 2 p^3."""
    n, p = 400, 0.7
    right = [i < p * n for i in range(n)]
    answers = ["right" if mark else "wrong" for mark in right]
    assert majority_at_k(answers, right, 3) == pytest.approx(3 * p**2 - 2 * p**3, abs=2e-3)


def test_ties_share_and_silence_elects_nobody() -> None:
    assert majority_at_k(["a", "b"], [True, False], 2) == 0.5
    assert majority_at_k([None, None], [False, False], 2) == 0.0
    assert majority_at_k(["a", None, None], [True, False, False], 3) == 1.0


def test_nonsense_is_refused() -> None:
    for samples, right, k in [(3, 1, 0), (3, 1, 4), (3, 4, 1)]:
        with pytest.raises(ValueError, match="pass@"):
            pass_at_k(samples, right, k)
    with pytest.raises(ValueError, match="maj@2"):
        majority_at_k(["a"], [True], 2)
    with pytest.raises(ValueError, match="nothing to bound"):
        bootstrap_interval(np.zeros(0))


def test_intervals_have_the_width_of_the_normal_law() -> None:
    values = np.random.default_rng(0).binomial(16, 0.4, 400) / 16.0
    low, high = bootstrap_interval(values, resamples=4_000)
    half = statistics.NormalDist().inv_cdf(0.975) * standard_error(values)
    mean = float(values.mean())
    assert low == pytest.approx(mean - half, abs=0.1 * half)
    assert high == pytest.approx(mean + half, abs=0.1 * half)


def test_intervals_of_two_problems_are_their_binomial_quantiles() -> None:
    """The mean of two draws from {0, 1} is 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    values = np.array([0.0, 1.0])
    assert bootstrap_interval(values, confidence=0.9) == (0.0, 1.0)
    assert bootstrap_interval(values, confidence=0.4) == (0.5, 0.5)


def test_intervals_cover_as_often_as_they_promise() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for trial in range(100):
        values = rng.binomial(8, 0.35, 100) / 8.0
        low, high = bootstrap_interval(values, resamples=300, seed=trial)
        held += low <= 0.35 <= high
    assert 86 <= held <= 100  # 95% of 100 within four standard errors


def test_equal_problems_leave_no_doubt_and_seeds_repeat() -> None:
    assert bootstrap_interval(np.full(9, 0.25)) == (0.25, 0.25)
    values = np.random.default_rng(2).random(20)
    assert bootstrap_interval(values, seed=5) == bootstrap_interval(values, seed=5)
    assert standard_error(np.array([0.3])) == 0.0


def test_tables_show_powers_of_two_and_all_samples() -> None:
    assert powers_up_to(12) == [1, 2, 4, 8, 12]
    assert powers_up_to(1) == [1]
