"""Modules that own the vectors of norms and residual scaling."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from kernels_pallas.norm import rms_norm, scaled_residual
from zaya_jax.model import initialization


class RMSNorm(nn.Module):
    """RMSNorm with a learned weight; float32 inside, cast to `dtype` on the way out."""

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "*batch channels"]) -> Float[Array, "*batch channels"]:
        """Normalises the last axis."""
        weight = self.param("weight", initialization.ones, (x.shape[-1],), jnp.float32)
        return rms_norm(x, weight, epsilon=self.epsilon).astype(self.dtype)


class ResidualScale(nn.Module):
    """Learned bias and scale on both branches of a residual addition; float32."""

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "*batch channels"],
        residual: Float[Array, "*batch channels"],
    ) -> Float[Array, "*batch channels"]:
        """Adds a block's output to the residual stream."""
        shape = (hidden.shape[-1],)
        ones, zeros = initialization.ones, initialization.zeros
        return scaled_residual(
            hidden,
            residual,
            hidden_bias=self.param("hidden_states_bias", zeros, shape, jnp.float32),
            hidden_scale=self.param("hidden_states_scale", ones, shape, jnp.float32),
            residual_bias=self.param("residual_bias", zeros, shape, jnp.float32),
            residual_scale=self.param("residual_scale", ones, shape, jnp.float32),
        )
