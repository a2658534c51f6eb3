"""The LM head and its cross entropy or log-probabilities over a mesh.

Every device scores its own tokens: those of its rows and, so that no product is made twice, its
part of them along `context` and `tensor`. The head's weight is gathered over `tensor` and `fsdp`
before use and its gradient summed and scattered after. Sums are over all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from kernels_pallas.backend import Implementation
from kernels_pallas.cross_entropy import LinearCrossEntropy, linear_cross_entropy
from zaya_jax.parallel.mesh import BATCH_AXES, current_mesh
from zaya_jax.parallel.settings import MESH_AXES

_TOKENS = PartitionSpec(BATCH_AXES, ("context", "tensor"))  # [batch, seq]
_WEIGHT = PartitionSpec("tensor", "fsdp")  # [vocab, hidden]


def cross_entropy_on_mesh(
    hidden: Float[Array, "batch seq hidden"],
    weight: Float[Array, "vocab hidden"],
    bias: Float[Array, " vocab"] | None,
    targets: Int[Array, "batch seq"],
    token_weights: Float[Array, "batch seq"],
    *,
    z_loss_weight: float,
    implementation: Implementation,
) -> LinearCrossEntropy:
    """`linear_cross_entropy` of all tokens, on the mesh in force or, without one, on one device."""

    def sums(
        hidden: Array, weight: Array, bias: Array | None, targets: Array, token_weights: Array
    ) -> LinearCrossEntropy:
        # [batch, seq, hidden] -> [batch * seq, hidden]: the head does not see the sequence
        return linear_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]),
            weight,
            bias,
            targets.reshape(-1),
            token_weights.reshape(-1),
            z_loss_weight=z_loss_weight,
            implementation=implementation,
        )

    mesh = current_mesh()
    if mesh is None:
        return sums(hidden, weight, bias, targets, token_weights)

    def on_device(hidden: Array, weight: Array, *rest: Any) -> LinearCrossEntropy:
        return jax.lax.psum(sums(hidden, _whole(weight), *rest), MESH_AXES)

    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(_TOKENS, _WEIGHT, PartitionSpec(), _TOKENS, _TOKENS),
        out_specs=PartitionSpec(),
        check_vma=False,
    )(hidden, weight, bias, targets, token_weights)


def score_tokens_on_mesh(
    score: Callable[[Array, Array, Array | None, Array], Any],
    hidden: Float[Array, "batch seq hidden"],
    weight: Float[Array, "vocab hidden"],
    bias: Float[Array, " vocab"] | None,
    targets: Int[Array, "batch seq"],
) -> Any:
    """What `score` says of each token, on the mesh in force or, without one, on one device.

    Args:
      score: from states [tokens, hidden], weight, bias and targets [tokens] to a tree of arrays
        [tokens]; each token by itself.
      hidden: final states.
      weight: of the head.
      bias: of the head, or None.
      targets: token ids.

    Returns:
      The tree, with arrays [batch, seq].
    """

    def rows(hidden: Array, weight: Array, bias: Array | None, targets: Array) -> Any:
        # [batch, seq, hidden] -> [batch * seq, hidden], and back
        scored = score(hidden.reshape(-1, hidden.shape[-1]), weight, bias, targets.reshape(-1))
        return jax.tree.map(lambda x: x.reshape(targets.shape), scored)

    mesh = current_mesh()
    if mesh is None:
        return rows(hidden, weight, bias, targets)
    return jax.shard_map(
        lambda hidden, weight, *rest: rows(hidden, _whole(weight), *rest),
        mesh=mesh,
        in_specs=(_TOKENS, _WEIGHT, PartitionSpec(), _TOKENS),
        out_specs=_TOKENS,
        check_vma=False,
    )(hidden, weight, bias, targets)


def _whole(weight: Array) -> Array:
    weight = jax.lax.all_gather(weight, "fsdp", axis=1, tiled=True)
    return jax.lax.all_gather(weight, "tensor", axis=0, tiled=True)
