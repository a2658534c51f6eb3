"""The expert feed-forward for few tokens: reads the weights of the experts that were hit, once.

Many tokens go through `kernels_pallas.expert_mlp`, whose groups of rows are large enough for
matrix products. With a handful, reading weights is all that matters: the loop below walks over
experts that have tokens, takes one expert's matrices and multiplies them with its tokens one by
one, so they come from memory once and from the processor's cache afterwards.
FLOPs: 6 H F per token. Bytes: 3 H F per expert that is hit.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from kernels_pallas.backend import Implementation, choose
from kernels_pallas.expert_mlp import Dispatch, expert_mlp

# From here on matrix products over groups of rows are quicker on a CPU.
FEW_TOKENS = 32


def expert_feed_forward(
    x: Float[Array, "tokens hidden"],
    class_index: Int[Array, " tokens"],
    gate: Float[Array, " tokens"],
    gate_up: Float[Array, "experts twice_width hidden"],
    down: Float[Array, "experts hidden width"],
    *,
    dispatch: Dispatch,
    implementation: Implementation,
) -> Float[Array, "tokens hidden"]:
    """Gated expert outputs in the dtype of `x`; zero for the skip class, which is the last one."""
    few = x.shape[0] <= FEW_TOKENS and jax.default_backend() == "cpu"
    if dispatch == "grouped" and few and choose(implementation, "expert_feed_forward") is None:
        return _expert_by_expert(x, class_index, gate, gate_up, down)
    return expert_mlp(
        x, class_index, gate, gate_up, down, dispatch=dispatch, implementation=implementation
    )


def _expert_by_expert(
    x: Array, class_index: Array, gate: Array, gate_up: Array, down: Array
) -> Array:
    tokens, experts = x.shape[0], down.shape[0]
    if tokens == 1:
        expert = jnp.minimum(class_index[0], experts - 1)  # a skipped token's gate is zero
        return (gate[:, None] * _swiglu(x, gate_up[expert], down[expert])).astype(x.dtype)
    count = jnp.sum(class_index[:, None] == jnp.arange(experts)[None, :], axis=0, dtype=jnp.int32)
    token_at = jnp.argsort(class_index, stable=True)  # tokens of expert 0 first, skipped ones last
    start = jnp.cumsum(count) - count
    hit_first = jnp.argsort(count == 0, stable=True)

    def one_expert(position: Array, output: Array) -> Array:
        expert = hit_first[position]
        own_gate_up, own_down = gate_up[expert], down[expert]

        def one_token(place: Array, output: Array) -> Array:
            token = token_at[place]
            row = _swiglu(lax.dynamic_slice_in_dim(x, token, 1), own_gate_up, own_down)
            return lax.dynamic_update_slice_in_dim(output, gate[token] * row, token, 0)

        return lax.fori_loop(start[expert], start[expert] + count[expert], one_token, output)

    hits = jnp.sum(count > 0)
    output = lax.fori_loop(0, hits, one_expert, jnp.zeros(x.shape, jnp.float32))
    return output.astype(x.dtype)


def _swiglu(x: Array, gate_up: Array, down: Array) -> Array:
    """One expert on rows of tokens, float32."""

    def product(a: Array, b: Array) -> Array:
        axes = (((1,), (1,)), ((), ()))
        return lax.dot_general(a, b.astype(a.dtype), axes, preferred_element_type=jnp.float32)

    g, u = jnp.split(product(x, gate_up), 2, axis=1)
    return product((jax.nn.silu(g) * u).astype(x.dtype), down)
