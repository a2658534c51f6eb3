"""Causal attention with grouped queries, packed segments and an optional sliding window.

    out_t = softmax_{j}(q_t . k_j / sqrt(head_dim)) v_j
    over j <= t, segment_j = segment_t, and t - j < window when there is a window

Query head h reads KV head h // (query_heads / kv_heads). Scores and softmax are float32.

The XLA form walks over blocks of queries and multiplies each only with the keys up to its end, so
the upper triangle costs nothing but the half blocks on the diagonal. FLOPs forward:
about 2 * batch * query_heads * head_dim * seq * (seq + block); bytes are dominated by the scores.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect, flash_attention, unseen

_MIN_QUERY_BLOCK = 128
_MAX_QUERY_BLOCKS = 16  # bounds the size of the compiled program for long sequences


def causal_attention(
    query: Float[Array, "batch seq query_heads head_dim"],
    key: Float[Array, "batch keys kv_heads head_dim"],
    value: Float[Array, "batch keys kv_heads head_dim"],
    *,
    segment_ids: Int[Array, "batch seq"] | None = None,
    key_segment_ids: Int[Array, "batch keys"] | None = None,
    query_offset: Int[Array, ""] | int | None = None,
    window: Int[Array, ""] | int | None = None,
    implementation: backend.Implementation = "auto",
) -> Float[Array, "batch seq query_heads head_dim"]:
    """Attention output in the dtype of `query`.

    Args:
      query: rotated, normalised queries.
      key: rotated, normalised keys.
      value: values.
      segment_ids: packed segments; a query sees its own segment only. None: one segment per row.
        Equal ids must stand together: the XLA form compares ids, the kernels take each run of
        equal ids for a segment.
      key_segment_ids: segments of the keys, where keys are more than the queries' own tokens.
      query_offset: place of the first query among the keys; may be traced. None: the keys are the
        queries' own tokens, and what lies above the diagonal is not computed.
      window: keys that a query sees, its own included; may be traced. None: all earlier keys.
      implementation: see `kernels_pallas.backend`; the kernels are those of `flash_attention`.

    What is not finite reaches only the queries that see it, see `kernels_pallas.unseen`; limits out
    of range are refused or, traced, brought into it as in `flash_attention`.

    Raises:
      KernelError: for arrays that do not fit together, and where the Pallas form is asked for, or
        due, and cannot run.
    """
    query, key, value = expect.floats("causal_attention", query=query, key=key, value=value)
    segment_ids, key_segment_ids, query_offset, window = _fitting_limits(
        query, key, value, segment_ids, key_segment_ids, query_offset, window
    )
    refusals = flash_attention.refusals(query, key, value)
    if backend.choose(implementation, "causal_attention", refusals) is not None:
        return flash_attention.flash_attention(
            query,
            key,
            value,
            segment_ids=key_segment_ids,
            window=window,
            query_offset=0 if query_offset is None else query_offset,
            implementation="pallas",
        )[0]
    finite = unseen.without_unfinite(query, key, value)
    return _in_blocks(finite, segment_ids, key_segment_ids, query_offset, window)


def _fitting_limits(
    query: Array, key: Array, value: Array, segment_ids: Any, key_segment_ids: Any, *places: Any
) -> tuple[Any, ...]:
    """Segments of queries and keys, offset and window, found to fit and brought into range."""
    segment_ids, key_segment_ids, query_offset, window = expect.integers(
        "causal_attention",
        segment_ids=segment_ids,
        key_segment_ids=key_segment_ids,
        query_offset=places[0],
        window=places[1],
    )
    flash_attention.expect_fit("causal_attention", query, key, value, window)
    if segment_ids is None and key_segment_ids is not None:
        raise backend.KernelError("causal_attention: key_segment_ids are given, segment_ids not")
    key_segment_ids = segment_ids if key_segment_ids is None else key_segment_ids
    expect.shapes(
        "causal_attention",
        segment_ids=(segment_ids, query.shape[:2]),
        key_segment_ids=(key_segment_ids, key.shape[:2]),
        query_offset=(query_offset, ()),
    )
    limits = flash_attention.in_range("causal_attention", query, key, query_offset, window)
    return segment_ids, key_segment_ids, *limits


def _in_blocks(
    finite: unseen.Finite,
    segment_ids: Array | None,
    key_segment_ids: Array | None,
    query_offset: Array | int | None,
    window: Array | int | None,
) -> Array:
    """The XLA form: blocks of queries, so that less lies above the diagonal and is computed."""
    key, value = finite.key, finite.value
    batch, seq, query_heads, head_dim = finite.query.shape
    kv_heads = key.shape[2]
    # [batch, seq, query_heads, head_dim] -> [batch, seq, kv_heads, group, head_dim]
    query = finite.query.reshape(batch, seq, kv_heads, query_heads // kv_heads, head_dim)
    block = max(_MIN_QUERY_BLOCK, -(-seq // _MAX_QUERY_BLOCKS))
    blocks, spoiled = [], []
    for start in range(0, max(seq, 1), block):
        stop = min(start + block, seq)
        keys = stop if query_offset is None else key.shape[1]
        first = start if query_offset is None else start + query_offset
        mask = _block_mask(
            first + jnp.arange(stop - start),
            None if segment_ids is None else segment_ids[:, start:stop],
            None if key_segment_ids is None else key_segment_ids[:, :keys],
            keys,
            window,
        )
        blocks.append(
            _attend(query[:, start:stop], key[:, :keys], value[:, :keys], mask, head_dim**-0.5)
        )
        bad_query, bad_key = finite.bad_query[:, start:stop], finite.bad_key[:, :keys]
        spoiled.append(unseen.spoiled(mask, bad_query, bad_key))
    # [batch, seq, kv_heads, group, head_dim] -> [batch, seq, query_heads, head_dim]
    attended = jnp.concatenate(blocks, axis=1).reshape(batch, seq, query_heads, head_dim)
    return jnp.where(jnp.concatenate(spoiled, axis=1)[..., None], jnp.nan, attended)


def _attend(query: Array, key: Array, value: Array, mask: Array, scale: float) -> Array:
    """Plain attention of a block of queries; `mask` is [batch or 1, queries, keys]."""
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", query * scale, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    probabilities = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bhgqk,bkhd->bqhgd", probabilities, value)


def _block_mask(
    query_at: Array,
    query_segments: Array | None,
    key_segments: Array | None,
    keys: int,
    window: Array | int | None,
) -> Array:
    """Which keys the queries at these places see: [batch or 1, queries, keys]."""
    distance = query_at[:, None] - jnp.arange(keys)[None, :]
    visible = (distance >= 0)[None]
    if window is not None:
        visible = visible & (distance < window)[None]
    if query_segments is not None and key_segments is not None:
        visible = visible & (query_segments[:, :, None] == key_segments[:, None, :])
    return visible
