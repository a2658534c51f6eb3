"""A few queries of each row against a long cache: the keys are split over programs.

Grid [splits, kv heads, batch]; a program owns the keys of one split for all queries that share a
KV head (queries times group, padded to 16 rows of a matrix instruction). It reads the keys within
the row's length and window only, carries maximum, normaliser and output in float32 and writes them
unnormalised; XLA weighs the splits by their log-sum-exp. Splits beyond a row's length return early
and count as nothing.

Bytes: the visible cache once, 4 * head_dim a key and KV head in bfloat16; FLOPs: 4 * head_dim a key
and query head. Bound by memory.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.backend import Target, call, cdiv, dot, load, power_of_two, store, tiles
from kernels_pallas.gpu.attention import LOG2_E, MASKED


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    lengths: jax.Array,
    window: jax.Array | int | None,
    *,
    target: Target,
) -> jax.Array:
    """Outputs [batch, queries, heads, head_dim] in the dtype of `query`."""
    batch, queries, heads, head_dim = query.shape
    keys, kv_heads = key.shape[1:3]
    group = heads // kv_heads
    plan = tiles(target, "attention_decode", head_dim)
    splits = min(plan["splits"], cdiv(keys, plan["key"]))
    # [batch, queries, kv_heads, group, head_dim] -> [batch, kv_heads, queries * group, head_dim]
    grouped = query.reshape(batch, queries, kv_heads, group, head_dim).swapaxes(1, 2)
    grouped = grouped.reshape(batch, kv_heads, queries * group, head_dim)
    rows = (batch, splits, kv_heads, queries * group)
    limits = [] if window is None else [jnp.asarray(window, jnp.int32).reshape(1)]
    out, top, total = call(
        functools.partial(
            _decode_kernel, block_k=plan["key"], splits=splits, group=group, queries=queries
        ),
        grouped,
        key,
        value,
        lengths.astype(jnp.int32),
        *limits,
        target=target,
        tiles=plan,
        grid=(splits, kv_heads, batch),
        outputs=(
            jax.ShapeDtypeStruct((*rows, head_dim), jnp.float32),
            jax.ShapeDtypeStruct(rows, jnp.float32),
            jax.ShapeDtypeStruct(rows, jnp.float32),
        ),
        name="attention_decode",
    )
    weight = jnp.exp2(top - jnp.max(top, axis=1, keepdims=True))
    normaliser = jnp.sum(weight * total, axis=1)
    combined = jnp.sum(weight[..., None] * out, axis=1)
    # A row of length 0 sees nothing: its output is 0.
    combined = combined / jnp.where(normaliser > 0, normaliser, 1.0)[..., None]
    combined = combined.reshape(batch, kv_heads, queries, group, head_dim).swapaxes(1, 2)
    return combined.reshape(query.shape).astype(query.dtype)


def _decode_kernel(*refs: Any, block_k: int, splits: int, group: int, queries: int) -> None:
    q_ref, k_ref, v_ref, lengths_ref, *window_ref, out_ref, top_ref, total_ref = refs
    split, kv_head, batch = (pl.program_id(axis) for axis in range(3))
    keys, head_dim = k_ref.shape[1], k_ref.shape[3]
    row = jax.lax.iota(jnp.int32, power_of_two(queries * group, 16))
    column = jax.lax.iota(jnp.int32, power_of_two(head_dim, 16))[None, :]
    valid = row < queries * group
    length = load(lengths_ref, batch)
    # Row r is query r // group; the last query stands at the last place.
    position = length - queries + jax.lax.div(row, jnp.int32(group))
    first = jnp.zeros_like(position)
    lowest = jnp.int32(0)
    if window_ref:
        window = load(window_ref[0], 0)
        first = position - window + 1
        lowest = jnp.maximum(length - queries - window + 1, 0)
    mask = valid[:, None] & (column < head_dim)
    q = load(q_ref, batch, kv_head, row[:, None], column, mask=mask)
    factor = head_dim**-0.5 * LOG2_E

    def step(block: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        out, top, total = carry
        place = block * block_k + jax.lax.iota(jnp.int32, block_k)
        seen = (place >= lowest) & (place < length)
        inside = seen[:, None] & (column < head_dim)
        k = load(k_ref, batch, place[:, None], kv_head, column, mask=inside)
        visible = (place[None, :] <= position[:, None]) & (place[None, :] >= first[:, None])
        scores = jnp.where(visible, dot(q, k, 1, 1) * factor, MASKED)
        new_top = jnp.maximum(top, jnp.max(scores, axis=1))
        p = jnp.where(visible, jnp.exp2(scores - new_top[:, None]), 0.0)
        shrink = jnp.exp2(top - new_top)
        v = load(v_ref, batch, place[:, None], kv_head, column, mask=inside)
        out = out * shrink[:, None] + dot(p.astype(v.dtype), v)
        return out, new_top, total * shrink + jnp.sum(p, axis=1)

    # The visible blocks, shared out evenly: a short row keeps all programs busy as well.
    start = lowest // block_k
    end = (jnp.minimum(length, keys) + block_k - 1) // block_k
    share = (jnp.maximum(end - start, 0) + splits - 1) // splits
    low = start + split * share
    carry = (
        jnp.zeros((row.shape[0], column.shape[1]), jnp.float32),
        jnp.full(row.shape, MASKED, jnp.float32),
        jnp.zeros(row.shape, jnp.float32),
    )
    out, top, total = jax.lax.fori_loop(low, jnp.minimum(low + share, end), step, carry)
    store(out_ref, batch, split, kv_head, row[:, None], column, value=out, mask=mask)
    store(top_ref, batch, split, kv_head, row, value=top, mask=valid)
    store(total_ref, batch, split, kv_head, row, value=total, mask=valid)
