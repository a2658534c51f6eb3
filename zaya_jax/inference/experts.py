"""The expert feed-forward while generating.

Few tokens come at a time, so reading weights is what takes time. On a CPU every expert's matrices
are arrays of their own (`ExpertMatrices`): out of a stack, whichever expert a token needs would
first be copied. Tokens are sorted by expert, and each expert that has some multiplies them one by
one or, where there are many, in blocks of rows; experts without tokens are not read. Elsewhere, and
for the definition, the stacked arrays go to `kernels_pallas.expert_mlp`.
FLOPs: 6 H F per row of a block. Bytes: 3 H F per block.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from kernels_pallas.backend import Implementation
from kernels_pallas.expert_mlp import Dispatch, expert_mlp
from zaya_jax.inference.quantized import QuantizedMatrix, dequantize

# Rows of a block, by how many tokens an expert has on average at least. XLA reads the weights three
# to four times as fast for one row as for several, on all cores at that: see `_product`.
_BLOCK_ROWS = ((0, 1), (4, 16), (16, 32))


class ExpertMatrices(NamedTuple):
    """The experts of one layer, each in arrays of its own."""

    gate_up: tuple[Float[Array, "twice_width hidden"] | QuantizedMatrix, ...]
    down: tuple[Float[Array, "hidden width"] | QuantizedMatrix, ...]


class StackedExperts(NamedTuple):
    """The experts of one layer in one array each."""

    gate_up: Float[Array, "experts twice_width hidden"]
    down: Float[Array, "experts hidden width"]


def expert_feed_forward(
    x: Float[Array, "tokens hidden"],
    class_index: Int[Array, " tokens"],
    gate: Float[Array, " tokens"],
    experts: ExpertMatrices | StackedExperts,
    *,
    dispatch: Dispatch,
    implementation: Implementation,
) -> Float[Array, "tokens hidden"]:
    """Gated expert outputs in the dtype of `x`; zero for the skip class, which is the last one.

    Args:
      x: tokens.
      class_index: of each token; the number of experts is the skip class.
      gate: factor of each token's output; zero for the skip class.
      experts: their weights.
      dispatch: of `expert_mlp`, for stacked experts.
      implementation: likewise.
    """
    if isinstance(experts, StackedExperts):
        return expert_mlp(
            x, class_index, gate, *experts, dispatch=dispatch, implementation=implementation
        )
    if x.shape[0] == 1:
        return (gate[:, None] * _one_token(x, class_index[0], experts)).astype(x.dtype)
    return _in_blocks(x, class_index, gate, experts)


def _one_token(x: Array, class_index: Array, experts: ExpertMatrices) -> Float[Array, "1 hidden"]:
    """The branch of the token's class alone; skipping reads nothing."""
    branches = [
        lambda x, gate_up=gate_up, down=down: _swiglu(x, gate_up, down)
        for gate_up, down in zip(*experts, strict=True)
    ]
    return lax.switch(class_index, [*branches, _skip], x)


def _skip(x: Array) -> Array:
    return jnp.zeros(x.shape, jnp.float32)


def _in_blocks(
    x: Array, class_index: Array, gate: Array, experts: ExpertMatrices
) -> Float[Array, "tokens hidden"]:
    tokens, count = x.shape[0], len(experts.down)
    rows = next(rows for least, rows in reversed(_BLOCK_ROWS) if tokens >= least * count)
    of_expert = jnp.sum(class_index[:, None] == jnp.arange(count)[None, :], axis=0, dtype=jnp.int32)
    start = jnp.cumsum(of_expert) - of_expert
    order = jnp.argsort(class_index, stable=True)  # tokens of expert 0 first, skipped ones last
    # Rows of a block past its expert's tokens belong to later experts, which overwrite them.
    ordered = jnp.pad(x[order], ((0, rows - 1), (0, 0)))
    output = jnp.zeros(ordered.shape, jnp.float32)
    for expert, (gate_up, down) in enumerate(zip(*experts, strict=True)):

        def one_block(
            number: Array,
            output: Array,
            first: Array = start[expert],
            gate_up: Array | QuantizedMatrix = gate_up,
            down: Array | QuantizedMatrix = down,
        ) -> Array:
            place = first + number * rows
            block = lax.dynamic_slice_in_dim(ordered, place, rows)
            return lax.dynamic_update_slice_in_dim(output, _swiglu(block, gate_up, down), place, 0)

        output = lax.fori_loop(0, -(-of_expert[expert] // rows), one_block, output)
    back = jnp.zeros_like(order).at[order].set(jnp.arange(tokens, dtype=order.dtype))
    own = jnp.where((class_index < count)[:, None], gate[:, None] * output[back], 0.0)
    return own.astype(x.dtype)


def _swiglu(x: Array, gate_up: Array | QuantizedMatrix, down: Array | QuantizedMatrix) -> Array:
    """One expert on rows of tokens, float32."""
    if x.ndim == 2 and x.shape[0] == 1:
        return _swiglu(x[0], gate_up, down)[None]
    g, u = jnp.split(_product(x, gate_up), 2, axis=-1)
    return _product((jax.nn.silu(g) * u).astype(x.dtype), down)


def _product(a: Array, b: Array | QuantizedMatrix) -> Array:
    """The last axis of both contracted, float32.

    XLA for CPUs makes a loop over the rows of `b`, spread over the cores, of a vector times a
    transposed matrix; anything else that is as small runs on one core.
    """
    b = dequantize(b, a.dtype) if isinstance(b, QuantizedMatrix) else b.astype(a.dtype)
    if a.ndim == 1:
        return jnp.matmul(a, b.T, preferred_element_type=jnp.float32)
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
