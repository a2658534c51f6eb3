"""Expert matrices in 8 or 4 bits, everything else as it is.

Experts are nine tenths of the released models' weights. Each row of a matrix is cut into groups of
`GROUP` columns with one scale each; values are rounded to the nearest of 2^bits - 1 evenly spaced
ones, symmetric about zero. Router, convolutions, norms and embeddings are kept: a router's choice
flips on small changes, and all of them together are small.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int8

GROUP = 32
BITS = (4, 8)


@flax.struct.dataclass
class QuantizedMatrix:
    """A matrix [rows, columns].

    Attributes:
      values: one byte each, or two in a byte: the first half of the columns in the low bits.
      scale: what a value of one stands for, by group.
      bits: 8 or 4.
    """

    values: Int8[Array, "rows packed"]
    scale: Float[Array, "rows groups"]
    bits: int = flax.struct.field(pytree_node=False)


def quantize(matrix: Float[Array, "rows columns"], bits: int) -> QuantizedMatrix:
    """The nearest matrix of so many bits.

    Raises:
      ValueError: for other numbers of bits, or columns that do not fill groups.
    """
    rows, columns = matrix.shape
    if bits not in BITS:
        raise ValueError(f"bits={bits}: must be one of {', '.join(map(str, BITS))}")
    if columns % (2 * GROUP):
        raise ValueError(
            f"{columns} columns: experts of {bits} bits need a multiple of {2 * GROUP}"
        )
    most = 2 ** (bits - 1) - 1
    # [rows, columns] -> [rows, groups, GROUP]
    grouped = matrix.astype(jnp.float32).reshape(rows, columns // GROUP, GROUP)
    scale = jnp.max(jnp.abs(grouped), axis=-1) / most
    steps = grouped / jnp.where(scale > 0, scale, 1.0)[:, :, None]
    values = jnp.round(steps).astype(jnp.int8).reshape(rows, columns)
    if bits == 4:
        low, high = jnp.split(values, 2, axis=1)
        values = (low & 0xF) | (high << 4)
    return QuantizedMatrix(values, scale, bits)


def dequantize(matrix: QuantizedMatrix, dtype: DTypeLike) -> Float[Array, "rows columns"]:
    """The matrix as numbers."""
    values = matrix.values
    if matrix.bits == 4:
        values = jnp.concatenate([(values << 4) >> 4, values >> 4], axis=1)
    rows, columns = values.shape
    grouped = values.reshape(rows, columns // GROUP, GROUP) * matrix.scale[:, :, None]
    return grouped.reshape(rows, columns).astype(dtype)


def with_rounded_experts(variables: dict[str, Any], bits: int) -> dict[str, Any]:
    """A model's variables with its experts rounded to so many bits, for measuring what that costs.

    Args:
      variables: `{"params": …, "balancing": …}`.
      bits: 8 or 4.
    """

    def rounded(stack: Array) -> Array:
        def one(matrix: Array) -> Array:
            return dequantize(quantize(matrix, bits), stack.dtype)

        # [layers, experts, rows, columns]
        return jax.lax.map(jax.vmap(one), stack)

    params = variables["params"]
    experts = {name: rounded(stack) for name, stack in params["layers"]["experts"].items()}
    layers = {**params["layers"], "experts": experts}
    return {**variables, "params": {**params, "layers": layers}}
