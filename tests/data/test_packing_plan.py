"""Best-fit decreasing: nothing lost, nothing split, and close to the fewest windows possible."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from zaya_jax.data.config import DataError
from zaya_jax.data.packing_plan import fewest_windows, plan_packing


def _lognormal(count: int, window: int) -> np.ndarray:
    lengths = np.random.default_rng(0).lognormal(8.5, 1.2, count)
    return np.clip(lengths, 1, window).astype(np.int64)


def _naive(lengths: list[int], window: int) -> int:
    """Number of windows of best-fit decreasing, by looking at every window."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [index for index, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting, key=lambda index: rooms[index])] -= length
        else:
            rooms.append(window - length)
    return len(rooms)


@hypothesis.settings(deadline=None, max_examples=80)
@hypothesis.given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 60), st.integers(0, 9))
def test_every_example_once_no_window_too_full_and_as_few_as_the_obvious_way(
    lengths: list[int], window: int, seed: int
):
    plan = plan_packing(np.asarray(lengths, np.int64), window, seed)
    assert sorted(plan.examples.tolist()) == list(range(len(lengths)))
    for index in range(len(plan)):
        total = sum(lengths[member] for member in plan.window(index))
        assert total == plan.fill[index] <= window
    assert len(plan) == _naive(lengths, window)


def test_within_one_percent_of_the_lower_bound_at_131072():
    lengths = _lognormal(20_000, 131_072)
    plan = plan_packing(lengths, 131_072)
    assert len(plan) <= 1.01 * fewest_windows(lengths, 131_072)


def test_the_seed_changes_windows_but_not_their_number():
    lengths = _lognormal(500, 8_192)
    one, same, other = (plan_packing(lengths, 8_192, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.examples, same.examples)
    assert not np.array_equal(one.examples, other.examples)
    assert len(one) == len(other)
    default, zero = plan_packing(lengths, 8_192), plan_packing(lengths, 8_192, 0)
    np.testing.assert_array_equal(default.examples, zero.examples)


@pytest.mark.parametrize("wrong", [0, 11])
def test_lengths_that_fit_no_window_are_named(wrong: int):
    with pytest.raises(DataError, match=f"example 2 has {wrong} tokens; packing takes 1 to 10"):
        plan_packing(np.asarray([1, 10, wrong], np.int64), 10)


@pytest.mark.parametrize(
    ("lengths", "fewest"),
    [([], 0), ([5, 5], 1), ([4, 4], 1), ([1] * 11, 2), ([6, 6, 6], 3), ([10, 10], 2)],
)
def test_the_fewest_windows_by_total_length_or_by_how_many_are_long(
    lengths: list[int], fewest: int
):
    assert fewest_windows(np.asarray(lengths, np.int64), 10) == fewest


@pytest.mark.slow
def test_a_million_lengths():
    lengths = _lognormal(1_000_000, 131_072)
    plan = plan_packing(lengths, 131_072)
    np.testing.assert_array_equal(np.sort(plan.examples), np.arange(1_000_000))
    assert plan.fill.max() <= 131_072
    assert len(plan) <= 1.01 * fewest_windows(lengths, 131_072)
