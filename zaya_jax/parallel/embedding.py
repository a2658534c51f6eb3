"""Looking tokens up in an embedding that is split over devices.

The rows' parts are gathered over `fsdp`; over `tensor` each device looks up the tokens whose rows
it owns, and the sum over devices brings them together. Gradients are summed and scattered back.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from zaya_jax.parallel.mesh import TOKENS, current_mesh


def embed_on_mesh(
    weight: Float[Array, "vocab hidden"], tokens: Int[Array, "batch seq"]
) -> Float[Array, "batch seq hidden"]:
    """The rows of `weight`, on the mesh in force or, without one, on one device."""
    mesh = current_mesh()
    if mesh is None:
        return jnp.take(weight, tokens, axis=0)

    def on_device(weight: Array, tokens: Array) -> Array:
        weight = jax.lax.all_gather(weight, "fsdp", axis=1, tiled=True)
        row = tokens - jax.lax.axis_index("tensor") * weight.shape[0]
        is_own = (row >= 0) & (row < weight.shape[0])
        rows = jnp.take(weight, jnp.where(is_own, row, 0), axis=0)
        return jax.lax.psum(jnp.where(is_own[..., None], rows, 0.0), "tensor")

    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(PartitionSpec("tensor", "fsdp"), TOKENS),
        out_specs=TOKENS,
        check_vma=False,
    )(weight, tokens)
