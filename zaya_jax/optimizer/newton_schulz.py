"""Nearly orthogonal matrices by the quintic Newton-Schulz iteration.

    X <- G / (|G|_F + epsilon)
    five times:   A = X X^T,   X <- a X + (b A + c A^2) X

with (a, b, c) = (3.4445, -4.7750, 2.0315).

Every singular value of G ends between about 0.7 and 1.2, whatever it was; the singular vectors
stay. Source: Jordan et al., "Muon" (2024).

Leading axes (layers, experts) are a batch and stay separate axes: reshaping them into one would
make XLA gather a stack whose layers or experts are split over devices. The Gram matrix A is taken
on the smaller side, so a matrix that is itself split along its longer side costs one sum of a small
matrix over its devices in each iteration, whatever their number, and is never gathered. The Pallas
kernels see whole matrices, so they serve one device; what is traced for a mesh takes the XLA form.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from kernels_pallas.backend import Implementation, KernelError, choose
from kernels_pallas.newton_schulz import COEFFICIENTS, newton_schulz

_EPSILON = 1e-7  # added to the Frobenius norm


def orthogonalize(
    matrices: Float[Array, "*batch rows columns"],
    *,
    steps: int = 5,
    dtype: DTypeLike = jnp.float32,
    implementation: Implementation = "auto",
) -> Float[Array, "*batch rows columns"]:
    """Newton-Schulz on each matrix of a stack by itself. A matrix of zeros stays zero.

    Args:
      matrices: one matrix, or a stack over any number of leading axes.
      steps: iterations.
      dtype: of the products; the norm is always float32.
      implementation: see `kernels_pallas.backend`.

    Returns:
      The result in the dtype of `matrices`.

    Raises:
      KernelError: where the Pallas form is asked for, or due, and cannot run.
    """
    on_mesh = not jax.sharding.get_abstract_mesh().empty
    if on_mesh and implementation == "pallas":
        raise KernelError(
            "newton_schulz: implementation='pallas' on a mesh, where matrices stay split over "
            "devices; use 'auto' or 'xla'"
        )
    wide = matrices.astype(jnp.float32)
    # Scaled by the largest entry first: squares of gradients below 1e-19 are zero in float32.
    largest = jnp.max(jnp.abs(wide), axis=(-2, -1), keepdims=True)
    scaled = wide / jnp.where(largest > 0, largest, 1.0)
    if not on_mesh and choose(implementation, "newton_schulz") is not None:
        # [*batch, rows, columns] -> [batch, rows, columns]
        flat = scaled.reshape(-1, *scaled.shape[-2:])
        x = newton_schulz(flat, steps=steps, dtype=dtype, implementation="pallas")
        return x.reshape(matrices.shape).astype(matrices.dtype)
    norm = jnp.sqrt(jnp.sum(jnp.square(scaled), axis=(-2, -1), keepdims=True))
    x = (scaled / (norm + _EPSILON)).astype(dtype)
    rows_are_fewer = x.shape[-2] <= x.shape[-1]
    # A loop, not unrolled: laid out, XLA keeps one more array for every iteration.
    x = jax.lax.fori_loop(0, steps, lambda _, x: _iterate(x, rows_are_fewer=rows_are_fewer), x)
    return x.astype(matrices.dtype)


def _iterate(
    x: Float[Array, "*batch rows columns"], *, rows_are_fewer: bool
) -> Float[Array, "*batch rows columns"]:
    a, b, c = COEFFICIENTS
    if rows_are_fewer:
        gram = _product("...ik,...jk->...ij", x, x)
        return a * x + _product("...ij,...jk->...ik", _polynomial(gram, b, c), x)
    gram = _product("...ki,...kj->...ij", x, x)
    return a * x + _product("...ij,...jk->...ik", x, _polynomial(gram, b, c))


def _polynomial(gram: Array, b: float, c: float) -> Array:
    return b * gram + c * _product("...ij,...jk->...ik", gram, gram)


def _product(equation: str, left: Array, right: Array) -> Array:
    # HIGHEST: float32 stays float32 on every device; it changes nothing for bfloat16.
    return jnp.einsum(equation, left, right, precision=jax.lax.Precision.HIGHEST)
