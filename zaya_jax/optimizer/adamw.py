"""AdamW with global-norm clipping, for the parameters that the loss moves.

    g <- g * min(1, clip_norm / |g|)                over all parameters together
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    p <- p - lr (m_hat / (sqrt(v_hat) + eps) + weight_decay * p)      decay on matrices only

Every line but the norm is elementwise: inside the jitted step m, v and p are each written by one
fused loop, in place, and no temporary of a parameter's size is made (a test reads the program).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from zaya_jax.optimizer.groups import decay_mask
from zaya_jax.optimizer.schedules import learning_rate_schedule
from zaya_jax.optimizer.settings import OptimizerConfig


def adamw(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """The transformation from gradients to parameter updates; its state is float32.

    Raises:
      ConfigError: when the schedule does not fit into `total_steps`.
    """
    clip = clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity()
    return optax.chain(
        clip,
        optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(learning_rate_schedule(config, total_steps)),
    )


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Scales gradients whose global norm exceeds `max_norm` down to it.

    optax's own divides every element by the norm, which XLA keeps as a clipped copy of all
    gradients; one factor for all is multiplied where the gradient is used.
    """

    def update(
        gradients: optax.Updates, state: optax.EmptyState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.EmptyState]:
        del params
        factor = jnp.minimum(1.0, max_norm / optax.tree.norm(gradients))
        return jax.tree.map(lambda gradient: gradient * factor, gradients), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)
