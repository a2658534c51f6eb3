"""Causal attention with grouped queries, packed segments and an optional sliding window.

    out_t = softmax_{j}(q_t . k_j / sqrt(head_dim)) v_j
    over j <= t, segment_j = segment_t, and t - j < window when there is a window

Query head h reads KV head h // (query_heads / kv_heads). Scores and softmax are float32.

The XLA form walks over blocks of queries and multiplies each only with the keys up to its end, so
the upper triangle costs nothing but the half blocks on the diagonal. FLOPs forward:
about 2 * batch * query_heads * head_dim * seq * (seq + block); bytes are dominated by the scores.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_MIN_QUERY_BLOCK = 128
_MAX_QUERY_BLOCKS = 16  # bounds the size of the compiled program for long sequences


def causal_attention(
    query: Float[Array, "batch seq query_heads head_dim"],
    key: Float[Array, "batch seq kv_heads head_dim"],
    value: Float[Array, "batch seq kv_heads head_dim"],
    *,
    segment_ids: Int[Array, "batch seq"] | None = None,
    window: Int[Array, ""] | int | None = None,
) -> Float[Array, "batch seq query_heads head_dim"]:
    """Attention output in the dtype of `query`.

    Args:
      query: rotated, normalised queries.
      key: rotated, normalised keys.
      value: values.
      segment_ids: packed segments; a query sees its own segment only. None: one segment per row.
      window: keys that a query sees, its own included; may be traced. None: all earlier keys.
    """
    batch, seq, query_heads, head_dim = query.shape
    kv_heads = key.shape[2]
    # [batch, seq, query_heads, head_dim] -> [batch, seq, kv_heads, group, head_dim]
    query = query.reshape(batch, seq, kv_heads, query_heads // kv_heads, head_dim)
    block = max(_MIN_QUERY_BLOCK, -(-seq // _MAX_QUERY_BLOCKS))
    blocks = []
    for start in range(0, seq, block):
        stop = min(start + block, seq)
        mask = _block_mask(start, stop, segment_ids, window)
        blocks.append(
            _attend(query[:, start:stop], key[:, :stop], value[:, :stop], mask, head_dim**-0.5)
        )
    attended = jnp.concatenate(blocks, axis=1) if len(blocks) > 1 else blocks[0]
    # [batch, seq, kv_heads, group, head_dim] -> [batch, seq, query_heads, head_dim]
    return attended.reshape(batch, seq, query_heads, head_dim)


def _attend(query: Array, key: Array, value: Array, mask: Array, scale: float) -> Array:
    """Plain attention of a block of queries; `mask` is [batch or 1, queries, keys]."""
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", query * scale, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    probabilities = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bhgqk,bkhd->bqhgd", probabilities, value)


def _block_mask(
    start: int, stop: int, segment_ids: Array | None, window: Array | int | None
) -> Array:
    """Which of the keys 0..stop-1 the queries start..stop-1 see: [batch or 1, queries, keys]."""
    distance = jnp.arange(start, stop)[:, None] - jnp.arange(stop)[None, :]
    visible = (distance >= 0)[None]
    if window is not None:
        visible = visible & (distance < window)[None]
    if segment_ids is not None:
        same = segment_ids[:, start:stop, None] == segment_ids[:, None, :stop]
        visible = visible & same
    return visible
