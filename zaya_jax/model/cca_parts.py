"""Compressed convolutional attention with parts of its mixing step left out, for ablations.

The notation is that of `kernels_pallas.cca`, whose numbers this gives where nothing is left out.
Without convolutions d = u; with the depthwise one alone d = c. Without the mean only d is
normalised. With `value_path = current` both halves of the values are of this token; the two
projections stay, so the number of parameters does too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from kernels_pallas.attention import causal_attention
from kernels_pallas.cca import apply_rope, shift_in_segment
from zaya_jax.config import ModelConfig
from zaya_jax.model import initialization
from zaya_jax.model.projection import output_projection, projection
from zaya_jax.variants import Convolutions, QueryKeyMean, ValuePath

_NORM_EPSILON = 1e-12  # below any squared norm that matters; a zero vector stays zero


class PartialCCAAttention(nn.Module):
    """CCA with the parts that the config names; one device, XLA."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch seq hidden"],
        *,
        cos: Float[Array, "batch seq half_rotary"],
        sin: Float[Array, "batch seq half_rotary"],
        segment_ids: Int[Array, "batch seq"] | None,
        window: Int[Array, ""] | None,
    ) -> Float[Array, "batch seq hidden"]:
        """The block's output, not yet added to the residual stream."""
        config = self.config
        query = projection(config, "query", config.query_size)(x)
        key = projection(config, "key", config.kv_size)(x)
        projected = jnp.concatenate([query, key], axis=-1)
        mixed = self._heads(self._convolve(projected, segment_ids).astype(jnp.float32))
        if config.query_key_mean is QueryKeyMean.GROUP:
            mixed = mixed + self._means(self._heads(projected.astype(jnp.float32)))
        norm = jax.lax.rsqrt(jnp.sum(jnp.square(mixed), axis=-1, keepdims=True) + _NORM_EPSILON)
        mixed = mixed * norm * config.head_dim**0.5
        temperature = self.param(
            "key_temperature", initialization.ones, (config.num_kv_heads,), jnp.float32
        )
        query, key = jnp.split(mixed, [config.num_query_heads], axis=2)
        key = key * temperature[None, None, :, None]
        attended = causal_attention(
            apply_rope(query, cos, sin).astype(x.dtype),
            apply_rope(key, cos, sin).astype(x.dtype),
            self._values(x, segment_ids),
            segment_ids=segment_ids,
            window=window,
            implementation=config.kernels.value,
        )
        # [batch, seq, query_heads, head_dim] -> [batch, seq, query_heads * head_dim]
        return output_projection(config)(attended.reshape(*x.shape[:2], config.query_size))

    def _heads(self, x: Array) -> Float[Array, "batch seq heads head_dim"]:
        # [batch, seq, heads * head_dim] -> [batch, seq, heads, head_dim]
        return x.reshape(*x.shape[:2], -1, self.config.head_dim)

    def _convolve(
        self, u: Float[Array, "batch seq channels"], segment_ids: Array | None
    ) -> Float[Array, "batch seq channels"]:
        """Queries and keys after the convolutions there are."""
        config = self.config
        if config.convolutions is Convolutions.NONE:
            return u
        channels, taps = u.shape[-1], initialization.matrix(config)
        width = config.depthwise_conv_width
        weight = self.param("depthwise_conv", taps, (channels, width), jnp.float32)
        bias = self.param("depthwise_conv_bias", initialization.zeros, (channels,), jnp.float32)
        convolved = bias[None, None, :]
        for distance in range(width):
            earlier = shift_in_segment(u, distance, None, segment_ids)
            convolved = convolved + earlier * weight[:, width - 1 - distance][None, None, :]
        if config.convolutions is Convolutions.DEPTHWISE:
            return convolved
        return self._convolve_heads(convolved.astype(u.dtype), bias, segment_ids)

    def _convolve_heads(
        self, c: Array, fill: Array, segment_ids: Array | None
    ) -> Float[Array, "batch seq channels"]:
        """The second convolution; `fill` is what stands before a segment."""
        config = self.config
        head_dim, width = config.head_dim, config.grouped_conv_width
        taps, channels = initialization.matrix(config), c.shape[-1]
        weight = self.param("grouped_conv", taps, (channels, head_dim, width), jnp.float32)
        total = self.param("grouped_conv_bias", initialization.zeros, (channels,), jnp.float32)
        # [channels, head_dim, width] -> [heads, out, in, width]
        weight = weight.reshape(-1, head_dim, head_dim, width).astype(c.dtype)
        total = total[None, None, :]
        for distance in range(width):
            earlier = self._heads(shift_in_segment(c, distance, fill, segment_ids))
            part = jnp.einsum("bshi,hoi->bsho", earlier, weight[..., width - 1 - distance])
            # [batch, seq, heads, head_dim] -> [batch, seq, channels]
            total = total + part.reshape(c.shape)
        return total

    def _means(
        self, projected: Float[Array, "batch seq heads head_dim"]
    ) -> Float[Array, "batch seq heads head_dim"]:
        """Of each query head with its KV head; of a KV head, the mean of those of its group."""
        config = self.config
        query, key = jnp.split(projected, [config.num_query_heads], axis=2)
        # [batch, seq, query_heads, head_dim] -> [batch, seq, kv_heads, group, head_dim]
        grouped = query.reshape(*query.shape[:2], config.num_kv_heads, -1, config.head_dim)
        means = 0.5 * (grouped + key[:, :, :, None, :])
        return jnp.concatenate([means.reshape(query.shape), jnp.mean(means, axis=3)], axis=2)

    def _values(
        self, x: Array, segment_ids: Array | None
    ) -> Float[Array, "batch seq kv_heads head_dim"]:
        config = self.config
        current = projection(config, "value_current", config.kv_size // 2)(x)
        layer = projection(config, "value_delayed", config.kv_size // 2)
        other = layer(x)
        if config.value_path is ValuePath.DELAYED_HALF:
            bias = layer.get_variable("params", "bias") if config.attention_bias else None
            other = shift_in_segment(other, 1, bias, segment_ids)
        return self._heads(jnp.concatenate([current, other], axis=-1))
