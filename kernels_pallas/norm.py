"""RMSNorm and the scaled residual addition, in float32.

    rms_norm(x)           = x / sqrt(mean(x^2) + epsilon) * weight
    scaled_residual(h, r) = (h + hidden_bias) * hidden_scale + (r + residual_bias) * residual_scale

The bias comes before the scale on both branches (arXiv 2605.05365, Sec. II; released code). Both
operations are bound by memory: a few FLOPs for each element read and written.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(
    x: Float[Array, "*batch channels"],
    weight: Float[Array, "channels"],
    *,
    epsilon: float,
) -> Float[Array, "*batch channels"]:
    """RMSNorm over the last axis; computed and returned in float32 whatever the input's dtype."""
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + epsilon) * _per_channel(weight, x)


def scaled_residual(
    hidden: Float[Array, "*batch channels"],
    residual: Float[Array, "*batch channels"],
    *,
    hidden_bias: Float[Array, "channels"],
    hidden_scale: Float[Array, "channels"],
    residual_bias: Float[Array, "channels"],
    residual_scale: Float[Array, "channels"],
) -> Float[Array, "*batch channels"]:
    """The residual stream after a block, float32. `hidden` is the block's output."""
    hidden = hidden.astype(jnp.float32)
    residual = residual.astype(jnp.float32)
    scaled_hidden = (hidden + _per_channel(hidden_bias, hidden)) * _per_channel(
        hidden_scale, hidden
    )
    scaled_skip = (residual + _per_channel(residual_bias, residual)) * _per_channel(
        residual_scale, residual
    )
    return scaled_hidden + scaled_skip


def _per_channel(vector: Array, like: Array) -> Array:
    """A float32 vector with the leading axes that adding it to `like` needs."""
    return vector.astype(jnp.float32).reshape((1,) * (like.ndim - 1) + vector.shape)
