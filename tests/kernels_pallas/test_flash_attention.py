"""The flash attention equals its definition: outputs, log-sum-exp and every gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas.attention import causal_attention
from kernels_pallas.backend import INTERPRETER, KernelError
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.gpu import attention as gpu
from kernels_pallas.gpu import attention_backward as gpu_backward
from tests.kernels_pallas.compare import assert_close, interpreted, random, value_and_gradients

TILE = 16  # of the interpreter's table, queries and keys


def inputs(batch, queries, keys, heads, kv_heads, head_dim, dtype=jnp.float32):
    kv = (batch, keys, kv_heads, head_dim)
    return random(0, (batch, queries, heads, head_dim), kv, kv, dtype=dtype)


def segments(*lengths: list[int]) -> jnp.ndarray:
    """Ids 1, 2, ... of the given lengths, row by row; the rest of a row is padding, 0."""
    width = max(sum(row) for row in lengths)
    ids = np.zeros((len(lengths), width), np.int32)
    for row, parts in zip(ids, lengths, strict=True):
        row[: sum(parts)] = np.repeat(np.arange(1, len(parts) + 1), parts)
    return jnp.asarray(ids)


def check(arguments, *, reduction: int, **limits) -> None:
    xla, pallas = (
        functools.partial(flash_attention, implementation=name, **limits)
        for name in ("xla", "pallas")
    )
    actual = interpreted(lambda: value_and_gradients(pallas, arguments))
    expected = value_and_gradients(xla, arguments)
    assert_close(actual, expected, reduction=reduction, dtype=arguments[0].dtype)


def test_grouped_heads_and_a_head_width_that_no_tile_has() -> None:
    check(inputs(2, 21, 21, 6, 2, 20), reduction=21)


def test_window_and_segments_of_one_and_two_cut_at_tile_borders_and_a_row_of_padding() -> None:
    ids = segments([1, 2, TILE - 3, TILE, 5], [])
    check(inputs(2, 37, 37, 2, 1, 16), reduction=37, segment_ids=ids, window=jnp.int32(TILE - 2))


def test_chunk_of_queries_against_longer_keys_in_bfloat16() -> None:
    arguments = inputs(2, 5, 40, 2, 2, 16, jnp.bfloat16)
    check(arguments, reduction=1, query_offset=jnp.asarray([35, 11], jnp.int32), window=20)


OUT_OF_REACH = (np.arange(40) < 18) | (np.arange(40) > 23)  # of 4 queries from 20 on, window 3


def kernels_beside_nan(*, backward: bool) -> tuple[Any, Any]:
    """What the kernels make of clean arrays, and of NaN where no query sees.

    The kernels by themselves: the operation takes NaN out of keys and values before them, so that
    it would not show what they read.
    """
    query, key, value, dout = random(0, *[(1, n, 1, 16) for n in (4, 40, 40, 4)])
    bounds = gpu.bounds(1, 4, 40, segment_ids=None, window=3, query_offset=20)

    @jax.jit
    def run(key: jax.Array, value: jax.Array) -> Any:
        out, lse = gpu.forward(query, key, value, bounds, target=INTERPRETER)
        if not backward:
            return out, lse
        saved = (query, key, value, bounds, out, lse)
        return gpu_backward.backward(*saved, dout, 0 * lse, target=INTERPRETER)[:3]

    spoiled = [jnp.where(OUT_OF_REACH[None, :, None, None], jnp.nan, a) for a in (key, value)]
    return run(key, value), run(*spoiled)


def test_keys_out_of_reach_are_not_read() -> None:
    clean, beside_nan = kernels_beside_nan(backward=False)
    assert_close(beside_nan, clean, reduction=1)


@pytest.mark.slow
def test_gradients_do_not_read_keys_out_of_reach() -> None:
    clean, beside_nan = kernels_beside_nan(backward=True)

    def in_reach(found: Any) -> Any:
        """A key nobody sees may keep its own NaN in its own gradient, as 0 * NaN; no other may."""
        dquery, dkey, dvalue = found
        return dquery, dkey[:, ~OUT_OF_REACH], dvalue[:, ~OUT_OF_REACH]

    assert_close(in_reach(beside_nan), in_reach(clean), reduction=1)


def test_log_sum_exp_combines_two_sets_of_keys() -> None:
    query, key, value = inputs(1, 1, 8, 1, 1, 16)

    @jax.jit
    def parts(query, key, value):
        run = functools.partial(flash_attention, query)
        early, late = (
            run(key[:, a:b], value[:, a:b], query_offset=b - a - 1) for a, b in ((0, 5), (5, 8))
        )
        return early, late, run(key, value, query_offset=7)[0]

    *halves, whole = parts(query, key, value)
    weights = [np.exp(lse[:, :, :, None]) for _, lse in halves]
    combined = sum(w * out for w, (out, _) in zip(weights, halves, strict=True)) / sum(weights)
    assert_close(combined, whole, reduction=8)


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(st.data())
def test_any_shape_and_limits(data: st.DataObject) -> None:
    kv_heads, group = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    keys = data.draw(st.integers(1, 2 * TILE + 3))
    queries = data.draw(st.integers(1, keys))
    offset = data.draw(st.integers(0, keys - queries))
    cuts = sorted(data.draw(st.sets(st.integers(1, keys), max_size=4)) | {0, keys})
    ids = jnp.asarray(np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))[None], jnp.int32)
    window = data.draw(st.none() | st.integers(1, keys))
    head_dim = data.draw(st.sampled_from([16, 20, 48]))
    arguments = inputs(1, queries, keys, kv_heads * group, kv_heads, head_dim)
    check(arguments, reduction=keys, segment_ids=ids, window=window, query_offset=offset)


def test_refusals_name_the_reason() -> None:
    query, key, value = inputs(1, 4, 4, 3, 3, 16)
    with pytest.raises(KernelError, match=r"flash_attention: .* needs a GPU"):
        flash_attention(query, key, value, implementation="pallas")
    run = functools.partial(flash_attention, implementation="pallas")
    with pytest.raises(KernelError, match="2 query heads are not a multiple of 3 KV heads"):
        interpreted(lambda: run(query[:, :, :2], key, value))
    with pytest.raises(KernelError, match=r"dtypes float32, bfloat16, float32 are not all"):
        interpreted(lambda: run(query, key.astype(jnp.bfloat16), value))
    wide = inputs(1, 4, 4, 1, 1, 288)
    with pytest.raises(KernelError, match="head_dim = 288 is more than 256"):
        interpreted(lambda: run(*wide))


def test_the_model_s_function_takes_the_kernels() -> None:
    arguments = inputs(1, 7, 7, 2, 1, 16)
    run = functools.partial(causal_attention, segment_ids=segments([3, 4]))
    actual = interpreted(lambda: jax.jit(functools.partial(run))(*arguments))
    expected = jax.jit(functools.partial(run, implementation="xla"))(*arguments)
    assert_close(actual, expected, reduction=7)
