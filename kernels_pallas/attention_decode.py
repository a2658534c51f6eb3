"""Attention of one or a few new tokens per row against a cache of keys with a length per row.

    position_i = length - queries + i        of query i; the cache holds the queries' own keys
    out_i = softmax_j(q_i . k_j / sqrt(head_dim)) v_j  over  position_i - window < j <= position_i

Query head h reads KV head h // (query_heads / kv_heads). For generation: no gradient.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect
from kernels_pallas.flash_attention import expect_fit, refusals
from kernels_pallas.gpu import attention_decode as gpu


def definition(
    query: Float[Array, "batch queries query_heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    lengths: Int[Array, "batch"],
    *,
    window: Int[Array, ""] | int | None = None,
) -> Float[Array, "batch queries query_heads head_dim"]:
    """All scores in float32: the specification, and the XLA form."""
    batch, queries, heads, head_dim = query.shape
    keys, kv_heads = key.shape[1:3]
    # [batch, queries, heads, head_dim] -> [batch, queries, kv_heads, group, head_dim]
    grouped = query.astype(jnp.float32)
    grouped = grouped.reshape(batch, queries, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, key.astype(jnp.float32)) * head_dim**-0.5
    position = lengths[:, None] - queries + jnp.arange(queries)[None]
    distance = position[:, :, None] - jnp.arange(keys)[None, None]
    visible = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    visible = visible[:, None, None]
    top = jnp.max(jnp.where(visible, scores, -1e30), axis=-1, keepdims=True)
    weights = jnp.where(visible, jnp.exp(scores - top), 0.0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total > 0, total, 1.0)
    seen = jnp.any(visible[:, 0, 0], axis=1)[:, :, None, None]
    kept = jnp.where(seen, value.astype(jnp.float32), 0.0)  # what no query sees may be NaN
    out = jnp.einsum("bhgqk,bkhd->bqhgd", weights, kept)
    return out.reshape(query.shape).astype(query.dtype)


def attention_decode(
    query: Float[Array, "batch queries query_heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    lengths: Int[Array, "batch"],
    *,
    window: Int[Array, ""] | int | None = None,
    implementation: backend.Implementation = "auto",
) -> Float[Array, "batch queries query_heads head_dim"]:
    """Attention outputs in the dtype of `query`.

    Args:
      query: the newest tokens' rotated, normalised queries.
      key: cache of keys; what no query of its row sees, beyond the length or before the window,
        is not read and may hold anything. What one query of a row sees must be finite, or it may
        reach the others.
      value: cache of values.
      lengths: keys of each row that count, the queries' own included, from 0 to all keys. A query
        that stands before the first key (a length below the number of queries) gets 0.
      window: keys a query sees, its own included, at least 1. None: all.
      implementation: see `kernels_pallas.backend`.

    A length or window out of range is refused; a traced one counts as the nearest that is in range.

    Raises:
      KernelError: for arrays that do not fit together, and where the Pallas form is asked for, or
        due, and cannot run.
    """
    query, key, value = expect.floats("attention_decode", query=query, key=key, value=value)
    lengths, window = expect.integers("attention_decode", lengths=lengths, window=window)
    expect_fit("attention_decode", query, key, value, window)
    expect.axes("attention_decode", lengths=(lengths, "batch"))
    expect.shapes("attention_decode", lengths=(lengths, key.shape[:1]))
    keys = key.shape[1]
    expect.within("attention_decode", lengths=(lengths, 0, keys), window=(window, 1, None))
    lengths = jnp.clip(lengths, 0, keys)
    window = jnp.maximum(window, 1) if isinstance(window, jax.Array) else window
    rows = query.shape[1] * query.shape[2] // key.shape[2]
    many = None if rows <= 128 else f"{rows} queries share a KV head, more than 128"
    reasons = [*refusals(query, key, value), many]
    target = backend.choose(implementation, "attention_decode", reasons)
    if query.size == 0:
        return jnp.zeros_like(query)
    if target is None:
        return definition(query, key, value, lengths, window=window)
    return gpu.forward(query, key, value, lengths, window, target=target)
