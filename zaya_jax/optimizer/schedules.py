"""Learning rate as a function of the updates already made."""

from __future__ import annotations

import optax

from zaya_jax.config import ConfigError
from zaya_jax.optimizer.settings import OptimizerConfig, Schedule


def learning_rate_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """The learning rate of update `count` (0 for the first) in a run of `total_steps` updates.

    Warm-up is linear and reaches the peak at update `warmup_steps`; update 0 gets
    `peak / (warmup_steps + 1)`, so no update is wasted.

    Raises:
      ConfigError: when warm-up and decay do not fit into the run.
    """
    peak, final = config.peak_learning_rate, config.final_learning_rate
    warmup, decay = config.warmup_steps, config.decay_steps
    if warmup + decay > total_steps:
        raise ConfigError(
            f"optimizer.warmup_steps={warmup}, optimizer.decay_steps={decay}: together they must "
            f"not exceed train.steps={total_steps}"
        )
    if config.schedule is Schedule.COSINE:
        # The last update (total_steps - 1) gets the final rate.
        length = max(total_steps - 1 - warmup, 1)
        ratio = final / peak if peak > 0 else 1.0
        after_warmup = optax.cosine_decay_schedule(peak, length, alpha=ratio)
    elif config.schedule is Schedule.WSD:
        hold = total_steps - 1 - decay - warmup
        after_warmup = optax.linear_schedule(peak, final, decay, transition_begin=max(hold, 0))
    else:
        after_warmup = optax.constant_schedule(peak)
    if warmup == 0:
        return after_warmup
    rising = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    return optax.join_schedules([rising, after_warmup], [warmup])


def balancing_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule | float:
    """The learning rate of the balancing biases; a plain number when it never changes.

    Warm-up is linear as for the parameters; then the rate is constant, or goes linearly to
    `balancing_final_learning_rate`, which the last update gets.

    Raises:
      ConfigError: when the warm-up does not fit into the run.
    """
    peak, final = config.balancing_learning_rate, config.balancing_final_learning_rate
    warmup = config.balancing_warmup_steps
    if warmup > total_steps:
        raise ConfigError(
            f"optimizer.balancing_warmup_steps={warmup}: must not exceed train.steps={total_steps}"
        )
    if warmup == 0 and final is None:
        return peak
    length = max(total_steps - 1 - warmup, 1)
    after_warmup = (
        optax.constant_schedule(peak)
        if final is None
        else optax.linear_schedule(peak, final, length)
    )
    if warmup == 0:
        return after_warmup
    rising = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    return optax.join_schedules([rising, after_warmup], [warmup])
