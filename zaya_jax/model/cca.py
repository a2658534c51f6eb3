"""Compressed convolutional attention: projections, mixing, causal attention, output."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from kernels_pallas.cca import CCAWeights
from zaya_jax.config import ModelConfig
from zaya_jax.model import initialization
from zaya_jax.model.projection import output_projection, projection
from zaya_jax.parallel.context_parallel import mix_and_attend


class CCAAttention(nn.Module):
    """The attention block of ZAYA1 (arXiv 2510.04476; arXiv 2605.05365, Sec. II)."""

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
        value_current = projection(config, "value_current", config.kv_size // 2)(x)
        delayed_projection = projection(config, "value_delayed", config.kv_size // 2)
        value_delayed = delayed_projection(x)
        delayed_bias = (
            delayed_projection.get_variable("params", "bias") if config.attention_bias else None
        )
        attended = mix_and_attend(
            jnp.concatenate([query, key], axis=-1),
            value_current,
            value_delayed,
            self._mixing_weights(delayed_bias),
            cos=cos,
            sin=sin,
            segment_ids=segment_ids,
            window=window,
            implementation=config.kernels.value,
        )
        # [batch, seq, query_heads, head_dim] -> [batch, seq, query_heads * head_dim]
        return output_projection(config)(attended.reshape(*attended.shape[:2], config.query_size))

    def _mixing_weights(self, delayed_value_bias: Array | None) -> CCAWeights:
        config = self.config
        channels = config.query_size + config.kv_size
        taps = initialization.matrix(config)
        zeros, ones = initialization.zeros, initialization.ones

        def parameter(name: str, initializer: nn.initializers.Initializer, *shape: int) -> Array:
            return self.param(name, initializer, shape, jnp.float32)

        return CCAWeights(
            depthwise=parameter("depthwise_conv", taps, channels, config.depthwise_conv_width),
            depthwise_bias=parameter("depthwise_conv_bias", zeros, channels),
            grouped=parameter(
                "grouped_conv", taps, channels, config.head_dim, config.grouped_conv_width
            ),
            grouped_bias=parameter("grouped_conv_bias", zeros, channels),
            temperature=parameter("key_temperature", ones, config.num_kv_heads),
            delayed_value_bias=delayed_value_bias,
        )
