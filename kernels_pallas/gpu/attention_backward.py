"""Gradients of the flash attention, recomputing the probabilities from the log-sum-exp.

    p = exp(s - lse);  dv = p^T do;  ds = p * (do v^T - delta);  dq = ds k;  dk = ds^T q
    delta = rowsum(do * out) - dlse

Two kernels, neither of which needs atomics: ``attention_dq`` has the forward pass's grid and walk;
``attention_dkv`` has grid [key blocks, kv heads, batch], a program owns ``key`` keys of one KV head
and walks the queries that see them, head by head of the group, ``query`` at a time, with scores
transposed so that no operand needs turning. Sums are float32. FLOPs: 2.5 times the forward pass
(7 products of head_dim against 2, of which 2 are recomputed). Bound by the products.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.backend import Target, call, cdiv, dot, load, power_of_two, store, tiles
from kernels_pallas.gpu.attention import (
    LOG2_E,
    MASKED,
    Bounds,
    key_intervals,
    key_tile,
    query_tile,
)


def backward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bounds: Bounds,
    out: jax.Array,
    lse: jax.Array,
    dout: jax.Array,
    dlse: jax.Array,
    *,
    target: Target,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients to query, key and value in their dtypes."""
    product = dout.astype(jnp.float32) * out.astype(jnp.float32)
    delta = jnp.sum(product, axis=-1).swapaxes(1, 2) - dlse  # [batch, heads, queries]
    dquery = _dq(query, key, value, bounds, lse, delta, dout, target)
    dkey, dvalue = _dkv(query, key, value, bounds, lse, delta, dout, target)
    return dquery, dkey, dvalue


def _dq(query: Any, key: Any, value: Any, bounds: Bounds, *rest: Any) -> jax.Array:
    *tensors, target = rest
    batch, queries, heads, head_dim = query.shape
    plan = tiles(target, "attention_dq", head_dim)
    kernel = functools.partial(_dq_kernel, block_q=plan["query"], block_k=plan["key"])
    operands = [query, key, value, *tensors, bounds.offset]
    return call(
        kernel,
        *operands,
        *([bounds.first_key] if bounds.first_key is not None else []),
        target=target,
        tiles=plan,
        grid=(cdiv(queries, plan["query"]), heads, batch),
        outputs=jax.ShapeDtypeStruct(query.shape, query.dtype),
        name="attention_dq",
    )


def _dq_kernel(*refs: Any, block_q: int, block_k: int) -> None:
    q_ref, k_ref, v_ref, lse_ref, delta_ref, do_ref, offset_ref, *first_ref, dq_ref = refs
    rows, head, batch, column, inside = query_tile(q_ref, block_q)
    kv_head = head // (q_ref.shape[2] // k_ref.shape[2])
    q = load(q_ref, batch, rows[:, None], head, column, mask=inside)
    do = load(do_ref, batch, rows[:, None], head, column, mask=inside)
    valid = rows < q_ref.shape[1]
    lse = load(lse_ref, batch, head, rows, mask=valid) * LOG2_E
    delta = load(delta_ref, batch, head, rows, mask=valid)
    scale = q_ref.shape[3] ** -0.5
    visible = key_intervals(offset_ref, first_ref, rows, batch, q_ref, k_ref, block_k)

    def step(block: jax.Array, dq: jax.Array) -> jax.Array:
        keys = block * block_k + jax.lax.iota(jnp.int32, block_k)
        k = key_tile(k_ref, batch, kv_head, keys, column, visible.reach)
        scores = visible.hide(dot(q, k, 1, 1) * (scale * LOG2_E), block, keys)
        p = jnp.exp2(scores - lse[:, None])
        v = key_tile(v_ref, batch, kv_head, keys, column, visible.reach)
        ds = p * (dot(do, v, 1, 1) - delta[:, None])
        return dq + dot(ds.astype(k.dtype), k)

    zero = jnp.zeros((block_q, column.shape[1]), jnp.float32)
    dq = jax.lax.fori_loop(visible.start, visible.end, step, zero) * scale
    store(dq_ref, batch, rows[:, None], head, column, value=dq, mask=inside)


def _dkv(query: Any, key: Any, value: Any, bounds: Bounds, *rest: Any) -> tuple[Any, Any]:
    *tensors, target = rest
    batch, keys, kv_heads, head_dim = key.shape
    plan = tiles(target, "attention_dkv", head_dim)
    kernel = functools.partial(_dkv_kernel, block_q=plan["query"], block_k=plan["key"])
    operands = [query, key, value, *tensors, bounds.offset]
    if bounds.first_key is not None:
        operands += [bounds.first_key, bounds.last_query]
    return call(
        kernel,
        *operands,
        target=target,
        tiles=plan,
        grid=(cdiv(keys, plan["key"]), kv_heads, batch),
        outputs=(
            jax.ShapeDtypeStruct(key.shape, key.dtype),
            jax.ShapeDtypeStruct(value.shape, value.dtype),
        ),
        name="attention_dkv",
    )


def _dkv_kernel(*refs: Any, block_q: int, block_k: int) -> None:
    q_ref, k_ref, v_ref, lse_ref, delta_ref, do_ref, offset_ref, *limits, dk_ref, dv_ref = refs
    block, kv_head, batch = (pl.program_id(axis) for axis in range(3))
    queries, head_dim = q_ref.shape[1], q_ref.shape[3]
    column = jax.lax.iota(jnp.int32, power_of_two(head_dim, 16))[None, :]
    keys = block * block_k + jax.lax.iota(jnp.int32, block_k)
    reach = (0, k_ref.shape[1])
    k, v = (key_tile(ref, batch, kv_head, keys, column, reach) for ref in (k_ref, v_ref))
    group = q_ref.shape[2] // k_ref.shape[2]
    scale = head_dim**-0.5
    offset = load(offset_ref, batch)
    start, whole, cut, end = _query_intervals(limits, block, batch, offset, block_q, block_k, refs)

    def step(head: jax.Array, i: jax.Array, carry: tuple) -> tuple:
        dk, dv = carry
        rows = i * block_q + jax.lax.iota(jnp.int32, block_q)
        valid = rows < queries
        inside = valid[:, None] & (column < head_dim)
        q = load(q_ref, batch, rows[:, None], head, column, mask=inside)

        def masked(scores: jax.Array) -> jax.Array:
            seen = (keys[:, None] <= (rows + offset)[None, :]) & valid[None, :]
            if limits:
                first = load(limits[0], batch, rows, mask=valid)
                seen = seen & (keys[:, None] >= first[None, :])
            return jnp.where(seen, scores, MASKED)

        scores = dot(k, q, 1, 1) * (scale * LOG2_E)  # [block_k, block_q]
        partly = (i < whole) | (i >= cut)
        scores = jax.lax.cond(partly, masked, lambda scores: scores, scores)
        lse = load(lse_ref, batch, head, rows, mask=valid)[None, :] * LOG2_E
        p = jnp.exp2(scores - lse)
        do = load(do_ref, batch, rows[:, None], head, column, mask=inside)
        dv = dv + dot(p.astype(do.dtype), do)
        delta = load(delta_ref, batch, head, rows, mask=valid)[None, :]
        ds = p * (dot(v, do, 1, 1) - delta)
        return dk + dot(ds.astype(q.dtype), q), dv

    def one_head(g: jax.Array, carry: tuple) -> tuple:
        head = kv_head * group + g
        return jax.lax.fori_loop(start, end, functools.partial(step, head), carry)

    zero = jnp.zeros((block_k, column.shape[1]), jnp.float32)
    dk, dv = jax.lax.fori_loop(0, group, one_head, (zero, zero))
    inside = (keys < k_ref.shape[1])[:, None] & (column < head_dim)
    store(dk_ref, batch, keys[:, None], kv_head, column, value=dk * scale, mask=inside)
    store(dv_ref, batch, keys[:, None], kv_head, column, value=dv, mask=inside)


def _query_intervals(
    limits: list[Any],
    block: jax.Array,
    batch: jax.Array,
    offset: jax.Array,
    block_q: int,
    block_k: int,
    refs: tuple[Any, ...],
) -> tuple[jax.Array, ...]:
    """Blocks of queries that see a block of keys: start, start of whole ones, their end, end."""
    queries, keys = refs[0].shape[1], refs[1].shape[1]
    low = block * block_k
    high = jnp.minimum(low + block_k, keys) - 1
    last_low = last_high = jnp.int32(queries - 1)
    if limits:
        last_low, last_high = load(limits[1], batch, low), load(limits[1], batch, high)
    start = jnp.maximum(low - offset, 0) // block_q
    end = jnp.maximum((last_high + block_q) // block_q, start)
    whole = jnp.clip((jnp.maximum(high - offset, 0) + block_q - 1) // block_q, start, end)
    cut = jnp.clip(jnp.minimum(last_low + 1, queries) // block_q, whole, end)
    return start, whole, cut, end
