"""Muon: momentum whose matrices are made nearly orthogonal before they are applied.

For each matrix W [rows, columns] with gradient G, by itself however deep it is stacked:

    M <- beta M + (1 - beta) G
    U  = beta M + (1 - beta) G  (Nesterov)   or   M  (plain)
    W <- W - lr (rms sqrt(max(rows, columns)) orthogonalize(U) + weight_decay W)

An orthogonal matrix has entries of root mean square 1 / sqrt(max(rows, columns)), so with rms 0.2
the update is about as large as AdamW's and both share one learning rate (Liu et al., arXiv
2502.16982). Newton-Schulz stops at singular values of about 0.85: measured, 0.2 gives 0.17.

What the size of the gradient no longer says, this file has to see to:
  * a matrix without gradient (an expert that saw no token) is not moved, whatever its momentum;
  * a step without any gradient (every token masked) changes nothing, moments and decay included;
  * `momentum=0` keeps no buffer at all.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from zaya_jax.kernel_choice import check_kernels
from zaya_jax.optimizer.adamw import clip_by_global_norm
from zaya_jax.optimizer.groups import decay_mask, names_of, uses_muon
from zaya_jax.optimizer.newton_schulz import orthogonalize
from zaya_jax.optimizer.partition import partition
from zaya_jax.optimizer.schedules import learning_rate_schedule
from zaya_jax.optimizer.settings import OptimizerConfig


def muon(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Muon on matrices, AdamW on the rest, one learning rate, decoupled decay for both.

    Gradients must be those of the whole batch: orthogonalising is not linear.

    Raises:
      ConfigError: when the schedule does not fit into `total_steps`, and for kernels that cannot
        run here.
    """
    check_kernels("config.optimizer.muon_kernels", config.muon_kernels)
    clip = clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity()
    adam = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)
    rules = {"muon": scale_by_muon(config), "adamw": adam}
    direction = optax.chain(
        clip,
        partition(rules, lambda path: "muon" if uses_muon(path) else "adamw"),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
    )
    return optax.chain(
        skip_without_gradient(direction),
        # Outside: the schedule counts steps, skipped or not.
        optax.scale_by_learning_rate(learning_rate_schedule(config, total_steps)),
    )


def scale_by_muon(config: OptimizerConfig) -> optax.GradientTransformation:
    """From gradients of matrices to orthogonalised, scaled directions.

    Every leaf is a matrix or a stack of them over leading axes. The state is the momentum, float32
    and shaped like the parameters, or empty with `muon_momentum=0`.
    """
    beta = config.muon_momentum

    def init(params: Any) -> Any:
        if beta == 0:
            return optax.EmptyState()
        return jax.tree.map(lambda matrix: jnp.zeros(matrix.shape, jnp.float32), params)

    def update(gradients: Any, momentum: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        direction = gradients
        if beta > 0:
            momentum = _average(momentum, gradients, beta)
            direction = _average(momentum, gradients, beta) if config.muon_nesterov else momentum

        def orthogonal(path: Any, matrix: Array, gradient: Array) -> Array:
            split = config.muon_split_gate_up and names_of(path)[-1] == "gate_up"
            return _direction(matrix, gradient, config, parts=2 if split else 1)

        return jax.tree_util.tree_map_with_path(orthogonal, direction, gradients), momentum

    return optax.GradientTransformation(init, update)


def skip_without_gradient(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Leaves parameters and state alone in a step whose gradient is zero everywhere."""

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        has_gradient = optax.tree.norm(gradients) > 0
        updates, new_state = inner.update(gradients, state, params)
        updates = jax.tree.map(lambda new: jnp.where(has_gradient, new, 0.0), updates)
        kept = jax.tree.map(lambda new, old: jnp.where(has_gradient, new, old), new_state, state)
        return updates, kept

    return optax.GradientTransformation(inner.init, update)


def _average(momentum: Any, gradients: Any, beta: float) -> Any:
    return jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, momentum, gradients)


def _direction(
    matrix: Float[Array, "*batch rows columns"],
    gradient: Float[Array, "*batch rows columns"],
    config: OptimizerConfig,
    *,
    parts: int,
) -> Float[Array, "*batch rows columns"]:
    """The scaled direction; with `parts` the rows are that many matrices one below the other."""
    shape = matrix.shape
    # [batch, rows, columns] -> [batch, parts, rows / parts, columns]
    split_shape = (*shape[:-2], parts, shape[-2] // parts, shape[-1])
    matrix, gradient = matrix.reshape(split_shape), gradient.reshape(split_shape)
    direction = orthogonalize(
        matrix,
        steps=config.muon_steps,
        dtype=jnp.dtype(config.muon_dtype),
        implementation=config.muon_kernels.value,
    )
    scale = config.muon_rms * max(matrix.shape[-2:]) ** 0.5
    moved = jnp.where(_has_gradient(gradient, config), scale * direction, 0.0)
    return moved.reshape(shape)


def _has_gradient(
    gradient: Float[Array, "*batch rows columns"], config: OptimizerConfig
) -> Bool[Array, "*batch 1 1"]:
    # The largest entry, not the root mean square: squares of small numbers vanish in float32.
    largest = jnp.max(jnp.abs(gradient), axis=(-2, -1), keepdims=True)
    return largest > config.muon_least_gradient
