"""The controller of the router's balancing biases.

For expert e of a layer, over all real tokens of the step's batch that did not skip:

    load_e  = share of those tokens that chose e            (sums to 1 over the experts)
    error_e = load_e - 1 / E
    bias_e  = AdamW(bias_e, gradient = error_e)             an over-used expert's bias falls

(arXiv 2605.05365, Sec. II, eq. 5.) The biases get no gradient of the loss.

The skip class is not steered: its bias stays where it was initialised, and the load is taken over
the real experts only. The released weights say so: their skip biases are exactly the initial -1 in
every layer, while those of the experts have moved.
"""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from zaya_jax.optimizer.settings import OptimizerConfig


def balancing_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """AdamW with the balancing settings, for arrays [layers, experts]."""
    return optax.adamw(
        config.balancing_learning_rate,
        b1=config.balancing_beta1,
        b2=config.balancing_beta2,
        eps=config.balancing_epsilon,
        weight_decay=config.balancing_weight_decay,
    )


def init_balancing(
    optimizer: optax.GradientTransformation, biases: Float[Array, "layers classes"]
) -> optax.OptState:
    """The optimiser's state; it covers the experts and not the skip class."""
    return optimizer.init(biases[:, :-1])


def load_error(
    class_counts: Float[Array, "layers classes"],
) -> Float[Array, "layers experts"]:
    """Load of each real expert minus its fair share; 0 in a layer where every token skipped.

    Args:
      class_counts: real tokens per class over the whole step's batch; the last class is skip.
    """
    counts = class_counts[:, :-1]
    total = jnp.sum(counts, axis=-1, keepdims=True)
    error = counts / jnp.maximum(total, 1.0) - 1.0 / counts.shape[-1]
    return jnp.where(total > 0, error, 0.0)


def update_balancing(
    optimizer: optax.GradientTransformation,
    biases: Float[Array, "layers classes"],
    optimizer_state: optax.OptState,
    class_counts: Float[Array, "layers classes"],
) -> tuple[Float[Array, "layers classes"], optax.OptState]:
    """One step of the controller. The last column, the skip class, comes back unchanged."""
    expert_biases = biases[:, :-1]
    updates, optimizer_state = optimizer.update(
        load_error(class_counts), optimizer_state, expert_biases
    )
    moved = optax.apply_updates(expert_biases, updates)
    return jnp.concatenate([moved, biases[:, -1:]], axis=-1), optimizer_state
