"""Causal attention of a chunk of queries against keys that may reach further back.

    position_i = query_offset + i
    out_i = softmax_j(q_i . k_j / sqrt(head_dim)) v_j,   lse_i = logsumexp_j(same scores)
    over j <= position_i, segment_j = segment at position_i, position_i - j < window

Query head h reads KV head h // (query_heads / kv_heads). `definition` below is exactly that in
float32. The log-sum-exps of two sets of keys combine their outputs, weighted by exp(lse).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect, unseen
from kernels_pallas.gpu import attention as gpu
from kernels_pallas.gpu import attention_backward as gpu_backward

Outputs = tuple[
    Float[Array, "batch queries query_heads head_dim"], Float[Array, "batch query_heads queries"]
]


def definition(
    query: Float[Array, "batch queries query_heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    *,
    segment_ids: Int[Array, "batch keys"] | None = None,
    window: Int[Array, ""] | int | None = None,
    query_offset: Int[Array, "batch"] | Int[Array, ""] | int = 0,
) -> Outputs:
    """All scores at once, float32: the specification, and the XLA form."""
    batch, queries, heads, head_dim = query.shape
    keys, kv_heads = key.shape[1:3]
    dtype, finite = query.dtype, unseen.without_unfinite(query, key, value)
    query, key, value = finite.query, finite.key, finite.value
    # [batch, queries, heads, head_dim] -> [batch, queries, kv_heads, group, head_dim]
    grouped = query.astype(jnp.float32).reshape(
        batch, queries, kv_heads, heads // kv_heads, head_dim
    )
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, key.astype(jnp.float32)) * head_dim**-0.5
    offset = jnp.broadcast_to(jnp.asarray(query_offset), (batch,))
    position = offset[:, None, None] + jnp.arange(queries)[None, :, None]
    distance = position - jnp.arange(keys)[None, None, :]
    visible = distance >= 0
    if window is not None:
        visible = visible & (distance < window)
    if segment_ids is not None:
        own = jnp.take_along_axis(segment_ids, position[:, :, 0], axis=1)
        visible = visible & (own[:, :, None] == segment_ids[:, None, :])
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)
    out = jnp.einsum("bhgqk,bkhd->bqhgd", jnp.exp(scores - lse[..., None]), value)
    spoiled = unseen.spoiled(visible, finite.bad_query, finite.bad_key)
    return (
        jnp.where(spoiled[..., None], jnp.nan, out.reshape(query.shape)).astype(dtype),
        jnp.where(spoiled.swapaxes(1, 2), jnp.nan, lse.reshape(batch, heads, queries)),
    )


def flash_attention(
    query: Float[Array, "batch queries query_heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    *,
    segment_ids: Int[Array, "batch keys"] | None = None,
    window: Int[Array, ""] | int | None = None,
    query_offset: Int[Array, "batch"] | Int[Array, ""] | int = 0,
    implementation: backend.Implementation = "auto",
) -> Outputs:
    """Attention outputs in the dtype of `query`, and the log-sum-exp of each query's scores.

    Args:
      query: rotated, normalised queries.
      key: keys, the queries' own included: keys >= query_offset + queries.
      value: values.
      segment_ids: of the keys; equal ids stand together. None: one segment per row.
      window: keys a query sees, its own included, at least 1. None: all earlier ones.
      query_offset: position of the first query among the keys, also one per row; from 0 to
        keys - queries.
      implementation: see `kernels_pallas.backend`.

    What is not finite reaches only the queries that see it, see `kernels_pallas.unseen`. A window
    or offset out of range is refused; a traced one counts as the nearest that is in range.

    Raises:
      KernelError: for arrays that do not fit together, and where the Pallas form is asked for, or
        due, and cannot run.
    """
    query, key, value = expect.floats("flash_attention", query=query, key=key, value=value)
    segment_ids, window, query_offset = expect.integers(
        "flash_attention", segment_ids=segment_ids, window=window, query_offset=query_offset
    )
    expect_fit("flash_attention", query, key, value, window)
    rows = jnp.shape(query_offset) and query.shape[:1]
    expect.shapes(
        "flash_attention",
        segment_ids=(segment_ids, key.shape[:2]),
        query_offset=(query_offset, rows),
    )
    offset, window = in_range("flash_attention", query, key, query_offset, window)
    target = backend.choose(implementation, "flash_attention", refusals(query, key, value))
    limits: dict[str, Any] = {
        "segment_ids": segment_ids,
        "window": window,
        "query_offset": offset,
    }
    if target is None or query.size == 0:  # of no queries there is nothing to run a kernel for
        return definition(query, key, value, **limits)
    bounds = gpu.bounds(query.shape[0], query.shape[1], key.shape[1], **limits)
    return attend(target, query, key, value, bounds)


def expect_fit(operation: str, query: Array, key: Array, value: Array, window: object) -> None:
    """Refuse keys and values that do not belong to the queries, and a window that is no number."""
    kept = "batch keys kv_heads head_dim"
    arrays = {"query": (query, "batch queries query_heads head_dim"), "key": (key, kept)}
    expect.axes(operation, **arrays, value=(value, kept))
    batch, queries, heads, head_dim = query.shape
    keys, kv_heads = key.shape[1:3]
    expect.shapes(
        operation,
        key=(key, (batch, keys, kv_heads, head_dim)),
        value=(value, key.shape),
        window=(window, ()),
    )
    if heads % kv_heads:
        raise backend.KernelError(
            f"{operation}: shapes do not fit together: {heads} query heads are not a multiple of "
            f"{kv_heads} KV heads"
        )
    if queries > keys:
        raise backend.KernelError(
            f"{operation}: shapes do not fit together: {queries} queries are more than "
            f"the {keys} keys, which hold the queries' own"
        )


def in_range(
    operation: str,
    query: Array,
    key: Array,
    query_offset: Array | int | None,
    window: Array | int | None,
) -> tuple[Array | int | None, Array | int | None]:
    """Offset and window, refused out of range where they are known and moved into it elsewhere."""
    most = key.shape[1] - query.shape[1]
    expect.within(operation, query_offset=(query_offset, 0, most), window=(window, 1, None))
    if isinstance(query_offset, jax.Array):
        query_offset = jnp.clip(query_offset, 0, most)
    return query_offset, jnp.maximum(window, 1) if isinstance(window, jax.Array) else window


def refusals(query: Array, key: Array, value: Array) -> list[str | None]:
    """Why the kernels cannot take these arrays; None entries are no reasons."""
    head_dim = query.shape[-1]
    same = query.dtype == key.dtype == value.dtype
    return [
        None if head_dim <= 256 else f"head_dim = {head_dim} is more than 256",
        None
        if same and query.dtype in (jnp.float32, jnp.bfloat16)
        else f"dtypes {query.dtype}, {key.dtype}, {value.dtype} are not all float32 or bfloat16",
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    target: backend.Target, query: Array, key: Array, value: Array, bounds: gpu.Bounds
) -> tuple[Array, Array]:
    """The Pallas form, for callers that have chosen it."""
    # A key of NaN makes the score of all who see it NaN; hidden scores are replaced, never added.
    bad = unseen.unfinite_keys(key, value)[..., None, None]
    key, value = jnp.where(bad, jnp.nan, key), jnp.where(bad, 0, value)
    return gpu.forward(query, key, value, bounds, target=target)


def _forward(
    target: backend.Target, query: Array, key: Array, value: Array, bounds: gpu.Bounds
) -> tuple:
    out, lse = attend(target, query, key, value, bounds)
    return (out, lse), (query, key, value, bounds, out, lse)


def _backward(target: backend.Target, saved: tuple, cotangents: tuple) -> tuple:
    query, key, value, bounds, out, lse = saved
    dout, dlse = cotangents
    # Outputs that are no numbers get probabilities of zero, and finite arrays to multiply with.
    spoiled = ~jnp.isfinite(lse)  # [batch, heads, queries]
    rows = spoiled.swapaxes(1, 2)[..., None]
    query, out, dout = (jnp.where(rows, 0, a) for a in (query, out, dout))
    bad = unseen.unfinite_keys(key, value)[..., None, None]
    key, value = jnp.where(bad, 0, key), jnp.where(bad, 0, value)
    lse, dlse = jnp.where(spoiled, _NEVER, lse), jnp.where(spoiled, 0, dlse)
    saved = (query, key, value, bounds, out, lse)
    return (*gpu_backward.backward(*saved, dout, dlse, target=target), None)


_NEVER = 1e30  # a log-sum-exp beside which every score's probability is zero


attend.defvjp(_forward, _backward)
