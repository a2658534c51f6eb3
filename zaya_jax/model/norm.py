"""Modules that own the vectors of norms and residual scaling."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from kernels_pallas.backend import Implementation
from kernels_pallas.norm import rms_norm, scaled_residual
from zaya_jax.model import initialization
from zaya_jax.parallel.residual import residual_norm_on_mesh
from zaya_jax.variants import ResidualKind


class RMSNorm(nn.Module):
    """RMSNorm with a learned weight; float32 inside, cast to `dtype` on the way out."""

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def parameters(self, channels: int) -> Float[Array, "channels"]:
        """The weight."""
        return self.param("weight", initialization.ones, (channels,), jnp.float32)

    def __call__(self, x: Float[Array, "*batch channels"]) -> Float[Array, "*batch channels"]:
        """Normalises the last axis."""
        weight = self.parameters(x.shape[-1])
        return rms_norm(x, weight, epsilon=self.epsilon).astype(self.dtype)


class ResidualVectors(NamedTuple):
    """Bias and scale on both branches of a residual addition."""

    hidden_bias: Float[Array, "channels"]
    hidden_scale: Float[Array, "channels"]
    residual_bias: Float[Array, "channels"]
    residual_scale: Float[Array, "channels"]


class ResidualScale(nn.Module):
    """Learned bias and scale on both branches of a residual addition; float32.

    The plain kind has no parameters: its vectors are constants that change nothing.
    """

    kind: ResidualKind = ResidualKind.SCALED

    @nn.compact
    def parameters(self, channels: int) -> ResidualVectors:
        """The vectors."""
        shape = (channels,)
        if self.kind is ResidualKind.PLAIN:
            zero, one = jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
            return ResidualVectors(zero, one, zero, one)
        ones, zeros = initialization.ones, initialization.zeros
        return ResidualVectors(
            hidden_bias=self.param("hidden_states_bias", zeros, shape, jnp.float32),
            hidden_scale=self.param("hidden_states_scale", ones, shape, jnp.float32),
            residual_bias=self.param("residual_bias", zeros, shape, jnp.float32),
            residual_scale=self.param("residual_scale", ones, shape, jnp.float32),
        )

    def __call__(
        self,
        hidden: Float[Array, "*batch channels"],
        residual: Float[Array, "*batch channels"],
    ) -> Float[Array, "*batch channels"]:
        """Adds a block's output to the residual stream."""
        return scaled_residual(hidden, residual, **self.parameters(hidden.shape[-1])._asdict())


def add_and_norm(
    scale: ResidualScale,
    norm: RMSNorm,
    hidden: Float[Array, "batch seq channels"],
    residual: Float[Array, "batch seq channels"],
    *,
    implementation: Implementation,
) -> tuple[Float[Array, "batch seq channels"], Float[Array, "batch seq channels"]]:
    """The stream after a block, float32, and its norm: one kernel on a GPU."""
    channels = hidden.shape[-1]
    return residual_norm_on_mesh(
        hidden,
        residual,
        scale.parameters(channels)._asdict(),
        norm.parameters(channels),
        epsilon=norm.epsilon,
        norm_dtype=norm.dtype,
        implementation=implementation,
    )
