"""Attention of one or a few new tokens per row against a cache of keys with a length per row.

    position_i = length - queries + i        of query i; the cache holds the queries' own keys
    out_i = softmax_j(q_i . k_j / sqrt(head_dim)) v_j  over  position_i - window < j <= position_i

Query head h reads KV head h // (query_heads / kv_heads). For generation: no gradient.
"""

from __future__ import annotations

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
    batch, queries, _, head_dim = query.shape
    keys, kv_heads = key.shape[1:3]
    # [batch, queries, heads, head_dim] -> [batch, queries, kv_heads, group, head_dim]
    grouped = query.astype(jnp.float32).reshape(batch, queries, kv_heads, -1, head_dim)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, key.astype(jnp.float32)) * head_dim**-0.5
    position = lengths[:, None] - queries + jnp.arange(queries)[None]
    distance = position[:, :, None] - jnp.arange(keys)[None, None]
    visible = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    visible = visible[:, None, None]
    top = jnp.max(jnp.where(visible, scores, -1e30), axis=-1, keepdims=True)
    weights = jnp.where(visible, jnp.exp(scores - top), 0.0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total > 0, total, 1.0)
    reached = (jnp.arange(keys)[None] < lengths[:, None])[:, :, None, None]
    kept = jnp.where(reached, value.astype(jnp.float32), 0.0)  # what lies beyond may be NaN
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
      key: cache of keys; places from a row's length on are not read.
      value: cache of values.
      lengths: keys of each row that count, the queries' own included; 0 gives an output of 0.
      window: keys a query sees, its own included; may be traced. None: all.
      implementation: see `kernels_pallas.backend`.

    Raises:
      KernelError: for arrays that do not fit together, and where the Pallas form is asked for, or
        due, and cannot run.
    """
    expect_fit("attention_decode", query, key, value, window)
    expect.shapes("attention_decode", lengths=(lengths, key.shape[:1]))
    expect.integers("attention_decode", lengths=lengths)
    rows = query.shape[1] * query.shape[2] // key.shape[2]
    many = None if rows <= 128 else f"{rows} queries share a KV head, more than 128"
    reasons = [*refusals(query, key, value), many]
    target = backend.choose(implementation, "attention_decode", reasons)
    if target is None:
        return definition(query, key, value, lengths, window=window)
    return gpu.forward(query, key, value, lengths, window, target=target)
