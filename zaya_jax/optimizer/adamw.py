"""AdamW with global-norm clipping, for the parameters that the loss moves.

    g <- g * min(1, clip_norm / |g|)                over all parameters together
    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    p <- p - lr (m_hat / (sqrt(v_hat) + eps) + weight_decay * p)      decay on matrices only

Every line but the norm is elementwise, so inside the jitted step each parameter is read and written
by a few fused loops and no temporary of its size is kept.
"""

from __future__ import annotations

import optax

from zaya_jax.optimizer.groups import decay_mask
from zaya_jax.optimizer.schedules import learning_rate_schedule
from zaya_jax.optimizer.settings import OptimizerConfig


def adamw(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """The transformation from gradients to parameter updates; its state is float32.

    Raises:
      ConfigError: when the schedule does not fit into `total_steps`.
    """
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm > 0 else optax.identity()
    return optax.chain(
        clip,
        optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(learning_rate_schedule(config, total_steps)),
    )
