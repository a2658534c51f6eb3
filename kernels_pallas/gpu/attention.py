"""Causal flash attention: grouped queries, segments, window, query offset, log-sum-exp.

Which keys a query sees is an interval: from ``first_key`` (the start of its segment, or of its
window, whichever is later) to its own position. So segments and windows, traced or not, cost one
int32 per query, and whole blocks of keys outside the interval are never visited.

Forward: grid [query blocks, query heads, batch], the longest rows first. A program owns ``query``
rows of one head and walks the visible keys ``key`` at a time; only blocks that the interval's start
or the diagonal cuts are masked, by a branch in the one loop (a loop for each kind of block costs
registers). It carries the running maximum, the normaliser and the output in float32; scores are in
units of log 2.

FLOPs: 4 * batch * heads * head_dim * (visible pairs); bytes: q and o once, k and v once for every
query block. Bound by the matrix products from a few hundred keys on.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.backend import Target, call, cdiv, dot, load, power_of_two, store, tiles

LOG2_E = math.log2(math.e)
MASKED = -1e30  # finite: a block in which a row sees nothing must not make NaN


class Bounds(NamedTuple):
    """What limits visibility besides the diagonal.

    Attributes:
      offset: position of query 0 among the keys, int32 [batch].
      first_key: first key each query sees, int32 [batch, queries]; None: key 0.
      last_query: last query that sees each key, int32 [batch, keys]; None: the last one.
    """

    offset: jax.Array
    first_key: jax.Array | None
    last_query: jax.Array | None


def bounds(
    batch: int,
    queries: int,
    keys: int,
    *,
    segment_ids: jax.Array | None,
    window: Any,
    query_offset: Any,
) -> Bounds:
    """The intervals that segments of the keys, a window and an offset amount to."""
    offset = jnp.broadcast_to(jnp.asarray(query_offset, jnp.int32), (batch,))
    if segment_ids is None and window is None:
        return Bounds(offset, None, None)
    position = offset[:, None] + jnp.arange(queries, dtype=jnp.int32)[None]
    first = jnp.zeros((batch, queries), jnp.int32)
    if segment_ids is not None:
        starts = jnp.take_along_axis(segment_starts(segment_ids), position, axis=1, mode="clip")
        first = jnp.maximum(first, starts)
    if window is not None:
        first = jnp.maximum(first, position - jnp.asarray(window, jnp.int32) + 1)
    # first_key never falls along a row, so the queries that see a key are an interval as well.
    key = jnp.arange(keys, dtype=jnp.int32)
    last = jax.vmap(lambda row: jnp.searchsorted(row, key, side="right"))(first) - 1
    return Bounds(offset, first, last.astype(jnp.int32))


def segment_starts(segment_ids: jax.Array) -> jax.Array:
    """Index of the first token of each token's run of equal ids, int32 [batch, seq]."""
    index = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None]
    changed = segment_ids[:, 1:] != segment_ids[:, :-1]
    first = jnp.pad(changed, ((0, 0), (1, 0)), constant_values=True)
    return jax.lax.cummax(jnp.where(first, index, 0), axis=1)


def forward(
    query: jax.Array, key: jax.Array, value: jax.Array, bounds: Bounds, *, target: Target
) -> tuple[jax.Array, jax.Array]:
    """Outputs [batch, queries, heads, head_dim] and log-sum-exp float32 [batch, heads, queries]."""
    batch, queries, heads, head_dim = query.shape
    plan = tiles(target, "attention_forward", head_dim)
    kernel = functools.partial(
        _forward_kernel,
        block_q=plan["query"],
        block_k=plan["key"],
    )
    operands = [query, key, value, bounds.offset]
    operands += [] if bounds.first_key is None else [bounds.first_key]
    return call(
        kernel,
        *operands,
        target=target,
        tiles=plan,
        grid=(cdiv(queries, plan["query"]), heads, batch),
        outputs=(
            jax.ShapeDtypeStruct(query.shape, query.dtype),
            jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32),
        ),
        name="attention_forward",
    )


def _forward_kernel(*refs: Any, block_q: int, block_k: int) -> None:
    q_ref, k_ref, v_ref, offset_ref, *first_ref, out_ref, lse_ref = refs
    rows, head, batch, column, inside = query_tile(q_ref, block_q)
    kv_head = head // (q_ref.shape[2] // k_ref.shape[2])
    q = load(q_ref, batch, rows[:, None], head, column, mask=inside)
    factor = q_ref.shape[3] ** -0.5 * LOG2_E
    visible = key_intervals(offset_ref, first_ref, rows, batch, q_ref, k_ref, block_k)

    def step(block: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        out, top, total = carry
        keys = block * block_k + jax.lax.iota(jnp.int32, block_k)
        k = key_tile(k_ref, batch, kv_head, keys, column, visible.reach)
        scores = visible.hide(dot(q, k, 1, 1) * factor, block, keys)
        new_top = jnp.maximum(top, jnp.max(scores, axis=1))
        p = jnp.exp2(scores - new_top[:, None])
        shrink = jnp.exp2(top - new_top)
        v = key_tile(v_ref, batch, kv_head, keys, column, visible.reach)
        out = out * shrink[:, None] + dot(p.astype(v.dtype), v)
        return out, new_top, total * shrink + jnp.sum(p, axis=1)

    carry = (
        jnp.zeros((block_q, column.shape[1]), jnp.float32),
        jnp.full((block_q,), MASKED, jnp.float32),
        jnp.zeros((block_q,), jnp.float32),
    )
    out, top, total = jax.lax.fori_loop(visible.start, visible.end, step, carry)
    store(out_ref, batch, rows[:, None], head, column, value=out / total[:, None], mask=inside)
    lse = (top + jnp.log(total) * LOG2_E) / LOG2_E
    store(lse_ref, batch, head, rows, value=lse, mask=rows < q_ref.shape[1])


def query_tile(q_ref: Any, block_q: int) -> tuple[Any, ...]:
    """Rows [block_q], head, batch, columns [1, padded head_dim] and which are inside."""
    _, queries, _, head_dim = q_ref.shape
    block = pl.num_programs(0) - 1 - pl.program_id(0)  # the longest rows first
    rows = block * block_q + jax.lax.iota(jnp.int32, block_q)
    column = jax.lax.iota(jnp.int32, power_of_two(head_dim, 16))[None, :]
    inside = (rows < queries)[:, None] & (column < head_dim)
    return rows, pl.program_id(1), pl.program_id(2), column, inside


def key_tile(
    ref: Any,
    batch: Any,
    kv_head: Any,
    keys: jax.Array,
    column: jax.Array,
    reach: tuple[Any, Any],
) -> jax.Array:
    """A block of keys or values, [block_k, padded head_dim]; zero, not read, out of reach."""
    inside = (keys >= reach[0]) & (keys < reach[1])
    return load(
        ref, batch, keys[:, None], kv_head, column, mask=inside[:, None] & (column < ref.shape[3])
    )


class Visible(NamedTuple):
    """The keys that a block of queries sees, in blocks of keys."""

    position: jax.Array  # of each query among the keys, [block_q]
    first: jax.Array | None  # first key of each query, [block_q]; None: key 0
    start: jax.Array  # first block with visible keys
    whole: jax.Array  # first block that all queries see whole
    cut: jax.Array  # first block after that which some query sees in part
    end: jax.Array  # first block that no query sees
    reach: tuple[jax.Array, jax.Array]  # first key that some query sees, and the end of those

    def hide(self, scores: jax.Array, block: jax.Array, keys: jax.Array) -> jax.Array:
        """Scores [block_q, block_k] without the invisible pairs; whole blocks are not touched."""

        def masked(scores: jax.Array) -> jax.Array:
            seen = keys[None, :] <= self.position[:, None]
            if self.first is not None:
                seen = seen & (keys[None, :] >= self.first[:, None])
            return jnp.where(seen, scores, MASKED)

        partly = (block < self.whole) | (block >= self.cut)
        return jax.lax.cond(partly, masked, lambda scores: scores, scores)


def key_intervals(
    offset_ref: Any,
    first_ref: list[Any],
    rows: jax.Array,
    batch: Any,
    q_ref: Any,
    k_ref: Any,
    block_k: int,
) -> Visible:
    """What the queries ``rows`` see."""
    queries, keys = q_ref.shape[1], k_ref.shape[1]
    offset = load(offset_ref, batch)
    low = (pl.num_programs(0) - 1 - pl.program_id(0)) * rows.shape[0]
    high = jnp.minimum(low + rows.shape[0], queries) - 1
    stop = jnp.minimum(high + offset + 1, keys)
    end = (stop + block_k - 1) // block_k
    cut = jnp.minimum((low + offset + 1) // block_k, end)
    if not first_ref:
        zero = jnp.int32(0)
        return Visible(rows + offset, None, zero, zero, cut, end, (zero, stop))
    first = load(first_ref[0], batch, rows, mask=rows < queries)
    lowest = load(first_ref[0], batch, low)
    start = lowest // block_k
    whole = (load(first_ref[0], batch, high) + block_k - 1) // block_k
    whole = jnp.clip(whole, start, end)
    cut = jnp.maximum(cut, whole)
    return Visible(rows + offset, first, start, whole, cut, end, (lowest, stop))
