"""How much the experts of a layer have in common: overlap of their singular subspaces.

For expert i let U_i [D, d] hold an orthonormal basis of its d leading singular directions, on the
input side those of the stacked gate and up projection, on the output side those of the down
projection; D is the hidden size on both sides.

    overlap(i, j) = ||U_i^T U_j||_F^2 / d        1 for equal subspaces, 0 for orthogonal ones
    ratio         = mean over pairs i < j of overlap / (d / D)

d / D is what random subspaces have. arXiv 2605.05365 reports 1.45 (input) and 1.58 (output) for
ZAYA1-8B with d = 128.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zaya_jax.config import ModelConfig
from zaya_jax.evaluation.errors import EvaluationError


class ExpertOverlap(NamedTuple):
    """Ratios to the random floor, one for each layer."""

    input_side: list[float]
    output_side: list[float]
    rank: int  # d


def expert_overlap(
    config: ModelConfig, variables: dict[str, Any], rank: int = 128
) -> ExpertOverlap:
    """Overlap in every layer.

    Raises:
      EvaluationError: for a single expert, or a rank that the weights cannot have.
    """
    hidden, width = config.hidden_size, config.expert_intermediate_size
    if config.num_experts < 2:
        raise EvaluationError(f"num_experts={config.num_experts}: overlap needs two experts")
    if not 1 <= rank <= min(hidden, width):
        raise EvaluationError(f"rank={rank}: must be from 1 to {min(hidden, width)} here")
    weights = variables["params"]["layers"]["experts"]
    sides: list[list[float]] = []
    for name, side in (("gate_up", "input"), ("down", "output")):
        ratios = [
            float(overlap_ratio(jnp.asarray(weights[name][layer]), rank=rank, side=side))
            for layer in range(config.num_layers)
        ]
        sides.append(ratios)
    return ExpertOverlap(sides[0], sides[1], rank)


@functools.partial(jax.jit, static_argnames=("rank", "side"))
def overlap_ratio(
    weights: Float[Array, "experts out in"], *, rank: int, side: str
) -> Float[Array, ""]:
    """Mean overlap of all pairs of experts over d / D.

    Args:
      weights: of one layer, one matrix for each expert.
      rank: d.
      side: "input" compares right singular vectors (D is the last axis), "output" left ones.
    """
    matrices = weights.astype(jnp.float32)
    matrices = matrices if side == "input" else jnp.swapaxes(matrices, 1, 2)

    def basis(matrix: Float[Array, "rows width"]) -> Float[Array, "width rank"]:
        # Eigenvectors of the Gram matrix, ascending: D x D however many rows there are.
        return jnp.linalg.eigh(matrix.T @ matrix)[1][:, -rank:]

    bases = jax.lax.map(basis, matrices)
    experts, width, _ = bases.shape
    products = jnp.einsum("iwa,jwb->ijab", bases, bases)
    squares = jnp.sum(products**2, axis=(2, 3))
    pairs = (jnp.sum(squares) - jnp.trace(squares)) / (experts * (experts - 1))
    return pairs / rank / (rank / width)


def mean_ratio(ratios: list[float]) -> float:
    """Mean over layers."""
    return float(np.mean(ratios))
