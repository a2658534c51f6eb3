"""Compressed convolutional attention that continues cached sequences.

The same projections, mixing step and numbers as `zaya_jax.model.cca`. The stored columns stand in
front of the new ones when the mixing step runs, so its convolutions and its value delay find what
came before; what it computes for the stored columns themselves is dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.backend import choose
from kernels_pallas.cca import CCAWeights, cca_mix
from kernels_pallas.flash_attention import flash_attention
from zaya_jax.config import ModelConfig
from zaya_jax.model import initialization
from zaya_jax.model.linear import Linear


class LayerState(NamedTuple):
    """What a layer keeps of the tokens before the new ones; rows that begin have none."""

    columns: Float[Array, "rows columns channels"]
    delayed: Float[Array, "rows half_value"]


class NewEntries(NamedTuple):
    """What a layer adds to the cache."""

    key: Float[Array, "rows seq kv_heads head_dim"]
    value: Float[Array, "rows seq kv_heads head_dim"]
    columns: Float[Array, "rows columns_and_seq channels"]  # old columns, then new ones
    delayed: Float[Array, "rows columns_and_seq half_value"]  # the old value, then new ones


class Past(NamedTuple):
    """Cached keys and values, and which of them each new token sees."""

    key: Float[Array, "rows past kv_heads head_dim"]
    value: Float[Array, "rows past kv_heads head_dim"]
    visible: Bool[Array, "rows seq past"]
    length: Int[Array, " rows"]  # cached ones; the rest of a row is to be overwritten
    window: int | None  # keys that a token sees, its own included; None: all


def cached_attention(
    config: ModelConfig,
    params: dict[str, Any],
    x: Float[Array, "rows seq hidden"],
    state: LayerState,
    past: Past,
    *,
    begins: Bool[Array, " rows"],
    cos: Float[Array, "rows columns_and_seq half_rotary"],
    sin: Float[Array, "rows columns_and_seq half_rotary"],
    visible: Bool[Array, "seq seq"],
) -> tuple[Float[Array, "rows seq hidden"], NewEntries]:
    """The block's output, and what to store.

    Args:
      config: architecture.
      params: of one layer's attention.
      x: normed residual stream of the new tokens.
      state: see `LayerState`.
      past: see `Past`.
      begins: rows whose first token of all is among the new ones.
      cos: RoPE cosines of the stored columns' positions, then of the new tokens.
      sin: the sines.
      visible: which new tokens each new token sees.
    """

    def project(name: str, features: int, inputs: Array) -> Array:
        layer = Linear(
            features=features,
            use_bias=config.attention_bias,
            kernel_init=initialization.zeros,
            dtype=jnp.dtype(config.activation_dtype),
        )
        return layer.apply({"params": params[name]}, inputs)  # type: ignore[return-value]

    half = config.kv_size // 2
    query_key = [project("query", config.query_size, x), project("key", config.kv_size, x)]
    current = project("value_current", half, x)
    delayed = project("value_delayed", half, x)
    delayed_bias = params["value_delayed"]["bias"] if config.attention_bias else None
    stored = _stored(state, begins, delayed_bias, x.dtype)
    columns = jnp.concatenate([stored.columns, jnp.concatenate(query_key, axis=-1)], axis=1)
    width = stored.columns.shape[1]
    before = ((0, 0), (width - 1, 0), (0, 0))
    delayed = jnp.concatenate([jnp.pad(stored.delayed[:, None], before), delayed], axis=1)
    query, key, value = cca_mix(
        columns,
        jnp.pad(current, ((0, 0), (width, 0), (0, 0))),
        delayed,
        _mixing_weights(params, delayed_bias),
        cos=cos,
        sin=sin,
        implementation=config.kernels.value,
    )
    query, key, value = query[:, width:], key[:, width:], value[:, width:]
    attend = _attend if choose(config.kernels.value, "attention") is None else _attend_by_kernel
    attended = attend(query, key, value, past, visible)
    # [rows, seq, query_heads, head_dim] -> [rows, seq, query_heads * head_dim]
    attended = attended.reshape(*attended.shape[:2], config.query_size)
    return project("output", config.hidden_size, attended), NewEntries(key, value, columns, delayed)


def _stored(
    state: LayerState, begins: Array, delayed_bias: Array | None, dtype: jnp.dtype
) -> LayerState:
    """The state, replaced by that of a sequence's start in rows that begin: zeros projected."""
    start = jnp.zeros_like(state.delayed[:1])
    if delayed_bias is not None:
        start = delayed_bias.astype(jnp.float32)[None, :]
    columns = jnp.where(begins[:, None, None], 0.0, state.columns)
    delayed = jnp.where(begins[:, None], start, state.delayed)
    return LayerState(columns.astype(dtype), delayed.astype(dtype))


def _mixing_weights(params: dict[str, Any], delayed_bias: Array | None) -> CCAWeights:
    return CCAWeights(
        depthwise=params["depthwise_conv"],
        depthwise_bias=params["depthwise_conv_bias"],
        grouped=params["grouped_conv"],
        grouped_bias=params["grouped_conv_bias"],
        temperature=params["key_temperature"],
        delayed_value_bias=delayed_bias,
    )


def _attend(
    query: Array, key: Array, value: Array, past: Past, visible: Array
) -> Float[Array, "rows seq query_heads head_dim"]:
    """Softmax over cached and new keys together, float32."""
    rows, seq, query_heads, head_dim = query.shape
    kv_heads = key.shape[2]
    # [rows, seq, query_heads, head_dim] -> [rows, seq, kv_heads, group, head_dim]
    query = query.reshape(rows, seq, kv_heads, query_heads // kv_heads, head_dim)
    query = query * head_dim**-0.5

    def scores(keys: Array, mask: Array) -> Array:
        # Keys on the left: there they are read as they lie, where the right would turn them around.
        products = jax.lax.dot_general(
            keys, query, (((3,), (4,)), ((0, 2), (0, 2))), preferred_element_type=jnp.float32
        )
        # [rows, kv_heads, keys, seq, group] -> [rows, kv_heads, group, seq, keys]
        return jnp.where(mask, products.transpose(0, 1, 4, 3, 2), -jnp.inf)

    both = jnp.concatenate(
        [
            scores(past.key, past.visible[:, None, None]),
            scores(key, visible[None, None, None]),
        ],
        axis=-1,
    )
    probabilities = jax.nn.softmax(both, axis=-1).astype(value.dtype)
    split = past.key.shape[1]

    def weighted(weights: Array, values: Array) -> Array:
        # Values on the right: there a key's channels stay together when heads are moved outwards.
        sums = jax.lax.dot_general(
            weights, values, (((4,), (1,)), ((0, 1), (0, 2))), preferred_element_type=jnp.float32
        )
        return sums.transpose(0, 3, 1, 2, 4)  # [rows, kv_heads, group, seq, head_dim] -> seq second

    attended = weighted(probabilities[..., :split], past.value)
    attended = attended + weighted(probabilities[..., split:], value)
    # [rows, seq, kv_heads, group, head_dim] -> [rows, seq, query_heads, head_dim]
    return attended.astype(value.dtype).reshape(rows, seq, query_heads, head_dim)


def _attend_by_kernel(
    query: Array, key: Array, value: Array, past: Past, visible: Array
) -> Float[Array, "rows seq query_heads head_dim"]:
    """The same by the Pallas kernels, on one run of keys: the cached ones, then the new ones.

    What lies in a row beyond its cached keys is later than its new tokens, and so not seen. A row
    is lengthened by the width of the chunk, so that one that brings fewer tokens fits as well.
    """
    del visible  # the kernels know it from the places of queries and keys
    rows, seq = query.shape[:2]
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    place = past.length[:, None] + jnp.arange(seq, dtype=jnp.int32)[None, :]

    def joined(cached: Array, new: Array) -> Array:
        longer = jnp.pad(cached, ((0, 0), (0, seq), (0, 0), (0, 0)))
        return longer.at[row, place].set(new, unique_indices=True)

    keys, values = joined(past.key, key), joined(past.value, value)
    if seq == 1:
        return attention_decode(
            query, keys, values, past.length + 1, window=past.window, implementation="pallas"
        )
    return flash_attention(
        query, keys, values, query_offset=past.length, window=past.window, implementation="pallas"
    )[0]
