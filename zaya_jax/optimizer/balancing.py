"""The controller of the router's balancing biases.

For expert e of a layer, over all real tokens of the step's batch that did not skip:

    load_e  = share of those tokens that chose e            (sums to 1 over the experts)
    error_e = load_e - 1 / E
    bias_e  = AdamW(bias_e, gradient = error_e)             an over-used expert's bias falls

(arXiv 2605.05365, Sec. II, eq. 5.) The biases get no gradient of the loss. Two other rules are
here for comparison, with r_e = E error_e, the share above the fair one:

    sign    bias_e <- bias_e - lr sign(error_e)                         (arXiv 2408.15664)
    pid     bias_e  = initial - lr (P r_e(t) + I sum_s<=t r_e(s) + D (r_e(t) - r_e(t-1)))

The skip class is not steered: its bias stays where it was initialised, and the load is taken over
the real experts only. The released weights say so: their skip biases are exactly the initial -1 in
every layer, while those of the experts have moved.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from zaya_jax.optimizer.schedules import balancing_schedule
from zaya_jax.optimizer.settings import BalancingForm, OptimizerConfig


class PidState(NamedTuple):
    """The relative error of the last step and of the one before it."""

    previous: Array
    before_previous: Array


def balancing_optimizer(
    config: OptimizerConfig, total_steps: int = 1
) -> optax.GradientTransformation:
    """The rule of the balancing settings, for arrays [layers, experts].

    Args:
      config: the optimiser's settings.
      total_steps: length of the run; it matters only to a learning rate that changes.

    Raises:
      ConfigError: when the schedule does not fit into the run.
    """
    rate = balancing_schedule(config, total_steps)
    if config.balancing_rule is BalancingForm.ADAMW:
        return optax.adamw(
            rate,
            b1=config.balancing_beta1,
            b2=config.balancing_beta2,
            eps=config.balancing_epsilon,
            weight_decay=config.balancing_weight_decay,
        )
    if config.balancing_rule is BalancingForm.SIGN:
        rule = optax.stateless(lambda errors, _: jnp.sign(errors))
    else:
        rule = scale_by_pid(
            config.balancing_proportional, config.balancing_integral, config.balancing_derivative
        )
    return optax.chain(
        rule,
        optax.add_decayed_weights(config.balancing_weight_decay),
        optax.scale_by_learning_rate(rate),
    )


def scale_by_pid(
    proportional: float, integral: float, derivative: float
) -> optax.GradientTransformation:
    """The change of a PID controller's output from one step to the next.

    With a constant learning rate, adding up the changes gives the formula above.
    """

    def init(biases: Array) -> PidState:
        return PidState(jnp.zeros_like(biases), jnp.zeros_like(biases))

    def update(
        errors: Array, state: PidState, params: Array | None = None
    ) -> tuple[Array, PidState]:
        del params
        relative = errors * errors.shape[-1]
        change = relative - state.previous
        change_of_change = change - (state.previous - state.before_previous)
        output = proportional * change + integral * relative + derivative * change_of_change
        return output, PidState(relative, state.previous)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


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
