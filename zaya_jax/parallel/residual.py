"""The scaled residual addition and the norm of its result over a mesh.

Every device adds and normalises its own tokens, each over all channels; nothing is sent forward.
Backward the vectors' gradients are summed over the devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from kernels_pallas.backend import Implementation
from kernels_pallas.norm import scaled_residual_norm
from zaya_jax.parallel.mesh import TOKENS, current_mesh


def residual_norm_on_mesh(
    hidden: Float[Array, "batch seq channels"],
    residual: Float[Array, "batch seq channels"],
    vectors: dict[str, Float[Array, " channels"]],
    norm_weight: Float[Array, " channels"],
    *,
    epsilon: float,
    norm_dtype: jnp.dtype,
    implementation: Implementation,
) -> tuple[Float[Array, "batch seq channels"], Float[Array, "batch seq channels"]]:
    """`scaled_residual_norm` on the mesh in force or, without one, on one device.

    Args:
      hidden: the block's output.
      residual: the stream before the block.
      vectors: biases and scales by their names in `scaled_residual_norm`.
      norm_weight: of the RMSNorm.
      epsilon: of the RMSNorm.
      norm_dtype: of the second result.
      implementation: see `kernels_pallas.backend`.
    """

    def on_device(
        hidden: Array, residual: Array, vectors: dict[str, Array], norm_weight: Array
    ) -> tuple[Array, Array]:
        return scaled_residual_norm(
            hidden,
            residual,
            **vectors,
            norm_weight=norm_weight,
            epsilon=epsilon,
            norm_dtype=norm_dtype,
            implementation=implementation,
        )

    mesh = current_mesh()
    if mesh is None:
        return on_device(hidden, residual, vectors, norm_weight)
    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(TOKENS, TOKENS, PartitionSpec(), PartitionSpec()),
        out_specs=(TOKENS, TOKENS),
        check_vma=False,
    )(hidden, residual, vectors, norm_weight)
