"""Rotary position embedding tables (RoPE, arXiv 2104.09864) for a part of each head."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def inverse_frequencies(rotary_dim: int, theta: float) -> np.ndarray:
    """theta^(-2i / rotary_dim) for i < rotary_dim / 2, float32.

    The exponents are divided by the rotary width, not by head_dim.
    """
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    return (theta**-exponents).astype(np.float32)


def rope_tables(
    positions: Int[Array | np.ndarray, "batch seq"], rotary_dim: int, theta: float
) -> tuple[Float[Array, "batch seq half_rotary"], Float[Array, "batch seq half_rotary"]]:
    """Cosines and sines of position times inverse frequency, float32."""
    frequencies = jnp.asarray(inverse_frequencies(rotary_dim, theta))
    angles = jnp.asarray(positions, jnp.float32)[:, :, None] * frequencies[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)
