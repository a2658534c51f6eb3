"""Newton-Schulz orthogonalisation of a batch of matrices, for Muon.

    X_0 = X / (|X|_F + epsilon);  A = X X^T;  B = b A + c A A;  X <- a X + B X

Five steps of the quintic bring every singular value near 1 (not to 1: Muon needs no more). Tall
matrices are turned, so that A is the smaller square. `definition` is exactly that in float32; the
Pallas form makes half the tiles of both symmetric products. Used inside an optimizer: no gradient.

Source: the quintic of Keller Jordan's Muon, coefficients 3.4445, -4.7750, 2.0315.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels_pallas import backend, expect
from kernels_pallas.gpu import newton_schulz as gpu

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPSILON = 1e-7


def definition(
    matrices: Float[Array, "batch rows columns"], *, steps: int = 5, dtype: Any = jnp.float32
) -> Float[Array, "batch rows columns"]:
    """Full products in `dtype`: the specification in float32, and the XLA form."""
    a, b, c = COEFFICIENTS
    x, turned = _prepare(matrices, dtype)
    for _ in range(steps):
        square = _product("bmk,bnk->bmn", x, x).astype(dtype)
        polynomial = b * square.astype(jnp.float32) + c * _product("bmk,bkn->bmn", square, square)
        x = (
            a * x.astype(jnp.float32) + _product("bmk,bkn->bmn", polynomial.astype(dtype), x)
        ).astype(dtype)
    return _finish(x, turned, matrices)


def newton_schulz(
    matrices: Float[Array, "batch rows columns"],
    *,
    steps: int = 5,
    dtype: Any = jnp.bfloat16,
    implementation: backend.Implementation = "auto",
) -> Float[Array, "batch rows columns"]:
    """The orthogonalised matrices in their own dtype; products in `dtype`, summed in float32.

    A matrix that is not finite becomes NaN, the others of the batch do not depend on it.

    Raises:
      KernelError: where the Pallas form is asked for, or due, and cannot run.
    """
    (matrices,) = expect.floats("newton_schulz", matrices=matrices)
    expect.axes("newton_schulz", matrices=(matrices, "batch rows columns"))
    expect.integers("newton_schulz", steps=steps)
    expect.within("newton_schulz", steps=(steps, 0, None))
    known = jnp.dtype(dtype) in (jnp.float32, jnp.bfloat16)
    refusal = None if known else f"dtype = {jnp.dtype(dtype)}, not float32 or bfloat16"
    target = backend.choose(implementation, "newton_schulz", [refusal])
    if matrices.size == 0:
        return matrices
    if target is None:
        return definition(matrices, steps=steps, dtype=dtype)
    a, b, c = COEFFICIENTS
    x, turned = _prepare(matrices, dtype)
    for _ in range(steps):
        square = gpu.symmetric_product(x, 1.0, 0.0, None, target=target)
        polynomial = gpu.symmetric_product(square, c, b, square, target=target)
        x = gpu.matrix_step(polynomial, x, a, target=target)
    return _finish(x, turned, matrices)


def _prepare(matrices: Array, dtype: Any) -> tuple[Array, bool]:
    turned = matrices.shape[1] > matrices.shape[2]
    x = matrices.astype(jnp.float32)
    norm = jnp.sqrt(jnp.sum(jnp.square(x), axis=(1, 2), keepdims=True))
    x = (x / (norm + _EPSILON)).astype(dtype)
    return (x.swapaxes(1, 2) if turned else x), turned


def _finish(x: Array, turned: bool, matrices: Array) -> Array:
    return (x.swapaxes(1, 2) if turned else x).astype(matrices.dtype)


def _product(equation: str, a: Array, b: Array) -> Array:
    exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.einsum(equation, a, b, precision=exact, preferred_element_type=jnp.float32)
