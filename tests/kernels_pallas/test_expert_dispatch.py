"""Grouping tokens by expert loses none, and every expert's padded rows stay inside the buffer."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas.expert_dispatch import (
    Groups,
    group_tokens,
    group_tokens_by_load,
    overhang,
    row_buckets,
)


def check_groups(groups: Groups, class_index: np.ndarray, num_experts: int) -> None:
    token_at, place_of, expert, start, count = (np.asarray(a) for a in groups)
    np.testing.assert_array_equal(token_at[place_of], np.arange(class_index.size))
    assert sorted(expert) == list(range(num_experts))
    for e, first, n in zip(expert, start, count, strict=True):
        own = token_at[first : first + n]
        np.testing.assert_array_equal(own, np.flatnonzero(class_index == e))  # stable, complete
    assert (class_index[token_at[count.sum() :]] == num_experts).all()


@pytest.mark.parametrize("group", [group_tokens, group_tokens_by_load])
@pytest.mark.parametrize("skip_share", [0.0, 0.4, 1.0])
def test_every_token_has_one_place_beside_its_expert(group, skip_share: float) -> None:
    rng = np.random.default_rng(0)
    class_index = rng.integers(0, 5, 43)
    class_index[rng.random(43) < skip_share] = 5
    groups = group(jnp.asarray(class_index, jnp.int32), 5)
    check_groups(groups, class_index, 5)


def test_experts_keep_their_order_for_ragged_products_and_sort_by_load_for_buckets() -> None:
    class_index = jnp.asarray([2, 2, 2, 0, 1, 1, 3], jnp.int32)
    np.testing.assert_array_equal(group_tokens(class_index, 3).load, [1, 2, 3])
    by_load = group_tokens_by_load(class_index, 3)
    np.testing.assert_array_equal(by_load.expert, [2, 1, 0])
    np.testing.assert_array_equal(by_load.load, [3, 2, 1])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(0, 40))
def test_no_bucket_reaches_past_the_overhang(loads: list[int], skipped: int) -> None:
    tokens = sum(loads) + skipped
    buckets = row_buckets(tokens, len(loads))
    assert buckets == tuple(sorted(set(buckets)))
    assert buckets[-1] == max(1, tokens)  # whatever the load, some bucket holds it
    start = 0
    for load in sorted(loads, reverse=True):
        if load:
            bucket = next(size for size in buckets if size >= load)
            assert start + bucket <= tokens + overhang(buckets)
        start += load


def test_few_buckets_and_little_padding_at_balanced_load() -> None:
    buckets = row_buckets(2048, 16)
    assert len(buckets) <= 14  # each is one more loop to compile
    loads = np.bincount(np.random.default_rng(0).integers(0, 16, 2048), minlength=16)
    padded = sum(next(size for size in buckets if size >= load) for load in loads)
    assert padded <= 1.1 * 2048


def test_buckets_are_an_eighth_apart_near_the_mean_and_powers_of_two_far_from_it() -> None:
    near = (96, 112, 128, 144, 160, 192, 256)
    assert row_buckets(2048, 16) == (32, 64, *near, 384, 512, 1024, 2048)
    for tokens, experts in ((1000, 7), (333, 3), (40, 1), (5000, 64)):
        *inner, last = row_buckets(tokens, experts)
        assert last == tokens
        assert all(size % 16 == 0 and size >= 32 for size in inner), (tokens, experts)
    assert row_buckets(0, 4) == (1,)
    assert row_buckets(1, 4) == (1,)
