"""What generating keeps of the tokens it has seen.

Per layer: keys and values in pages; the last `state_columns` projected query/key columns from
before the convolutions; the last delayed value. Router states live only within a forward pass.

Pages of full layers hold everything; those of sliding layers are given back once no later token
can see them. With prefix caching each page of the full table also carries the convolution columns
and the delayed value at its end: only with those can a sequence be continued from there.
"""

from __future__ import annotations

import dataclasses

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float

from zaya_jax.config import LayerType, ModelConfig


@dataclasses.dataclass(frozen=True)
class CacheShape:
    """How much the cache can hold."""

    slots: int  # sequences that run at the same time
    page_size: int  # tokens in a page
    pages: int  # of the full layers, and of the table that every sequence has
    sliding_pages: int  # of the sliding layers; 0 without any
    keep_page_ends: bool  # whether pages carry the state at their end, for prefix caching


@flax.struct.dataclass
class Pages:
    """Keys and values of the layers of one kind, in the activation dtype."""

    key: Float[Array, "layers pages page kv_heads head_dim"]
    value: Float[Array, "layers pages page kv_heads head_dim"]


@flax.struct.dataclass
class Cache:
    """All of it, on the device.

    Attributes:
      full: pages of the full layers.
      sliding: pages of the sliding layers.
      columns: projected queries and keys of the newest tokens, float32.
      delayed: value channels the next token will use, float32.
      page_columns: `columns` after the last token of each full page; None without prefix caching.
      page_delayed: `delayed` after the last token of each full page.
    """

    full: Pages
    sliding: Pages
    columns: Float[Array, "all_layers slots columns channels"]
    delayed: Float[Array, "all_layers slots half_value"]
    page_columns: Float[Array, "all_layers full_pages columns channels"] | None
    page_delayed: Float[Array, "all_layers full_pages half_value"] | None


def state_columns(config: ModelConfig) -> int:
    """Columns to keep so that the convolutions of the next token see what they need.

    One more column carries the delayed value along even where both convolutions have one tap.
    """
    return max(1, config.depthwise_conv_width + config.grouped_conv_width - 2)


def layers_of(config: ModelConfig, kind: LayerType) -> tuple[int, ...]:
    """Indices of the layers of one kind."""
    return tuple(index for index, own in enumerate(config.layer_types) if own is kind)


def empty_cache(config: ModelConfig, shape: CacheShape) -> Cache:
    """A cache of zeros."""
    dtype = jnp.dtype(config.activation_dtype)
    columns = (state_columns(config), config.query_size + config.kv_size)
    delayed = (config.kv_size // 2,)
    layers = config.num_layers

    def pages(kind: LayerType, count: int) -> Pages:
        heads = (config.num_kv_heads, config.head_dim)
        own = (len(layers_of(config, kind)), count, shape.page_size, *heads)
        return Pages(jnp.zeros(own, dtype), jnp.zeros(own, dtype))

    ends = shape.keep_page_ends
    return Cache(
        full=pages(LayerType.FULL, shape.pages),
        sliding=pages(LayerType.SLIDING, shape.sliding_pages),
        columns=jnp.zeros((layers, shape.slots, *columns), jnp.float32),
        delayed=jnp.zeros((layers, shape.slots, *delayed), jnp.float32),
        page_columns=jnp.zeros((layers, shape.pages, *columns), jnp.float32) if ends else None,
        page_delayed=jnp.zeros((layers, shape.pages, *delayed), jnp.float32) if ends else None,
    )


def bytes_per_token(config: ModelConfig) -> int:
    """Keys and values of one token in all full layers: 2 * kv_heads * head_dim * itemsize each.

    Sliding layers stop growing at their window and are not counted.
    """
    itemsize = jnp.dtype(config.activation_dtype).itemsize
    return len(layers_of(config, LayerType.FULL)) * 2 * config.kv_size * itemsize


def bytes_per_sequence(config: ModelConfig) -> int:
    """What every sequence costs whatever its length: convolution columns and delayed values."""
    channels = state_columns(config) * (config.query_size + config.kv_size) + config.kv_size // 2
    return config.num_layers * channels * 4
