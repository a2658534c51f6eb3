"""Decode attention equals its definition for any lengths, and reads nothing beyond them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.backend import KernelError
from tests.kernels_pallas.compare import assert_close, interpreted, random

TILE = 16  # keys of the interpreter's table, in two splits


def check(lengths, *, queries=1, heads=2, kv_heads=1, head_dim=16, keys=70, window=None) -> None:
    batch = len(lengths)
    kv = (batch, keys, kv_heads, head_dim)
    query, key, value = random(0, (batch, queries, heads, head_dim), kv, kv)
    lengths = jnp.asarray(lengths, jnp.int32)
    beyond = (jnp.arange(keys)[None] >= lengths[:, None])[:, :, None, None]
    key, value = (jnp.where(beyond, jnp.nan, a) for a in (key, value))
    plain, kernel = (
        jax.jit(functools.partial(attention_decode, window=window, implementation=name))
        for name in ("xla", "pallas")
    )
    expected = plain(query, key, value, lengths)
    actual = interpreted(lambda: kernel(query, key, value, lengths))
    assert_close(actual, expected, reduction=keys)


def test_rows_of_every_length_and_a_cache_of_garbage() -> None:
    check([0, 1, TILE, TILE + 1, 70], heads=6, kv_heads=2, head_dim=20)


def test_several_queries_with_a_window_across_splits() -> None:
    check([3, 40, 70], queries=3, window=jnp.int32(TILE + 5))


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(st.data())
def test_any_lengths(data: st.DataObject) -> None:
    queries = data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.integers(queries, 70), min_size=1, max_size=4))
    check(lengths, queries=queries, window=data.draw(st.none() | st.integers(1, 70)))


def test_refusals_name_the_reason() -> None:
    query, key, value = random(0, (1, 1, 2, 16), (1, 4, 1, 16), (1, 4, 1, 16))
    lengths = jnp.asarray([4], jnp.int32)
    run = functools.partial(attention_decode, implementation="pallas")
    with pytest.raises(KernelError, match="attention_decode: implementation='pallas' needs a GPU"):
        run(query, key, value, lengths)
    many = jnp.ones((1, 4, 64, 16))
    with pytest.raises(KernelError, match="256 queries share a KV head, more than 128"):
        interpreted(lambda: run(many, key, value, lengths))
