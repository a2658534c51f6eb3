"""The optimiser's settings, and their defaults."""

from __future__ import annotations

import dataclasses
import enum

from zaya_jax.config import ConfigError


class Schedule(enum.StrEnum):
    """How the learning rate moves after its linear warm-up."""

    COSINE = "cosine"  # half a cosine from peak to final over the rest of the run
    WSD = "wsd"  # hold the peak, then fall linearly to final over the last `decay_steps`
    CONSTANT = "constant"  # hold the peak


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW on the parameters, and a second AdamW on the router's balancing biases.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    schedule: Schedule = Schedule.COSINE  # shape of the learning rate after warm-up
    peak_learning_rate: float = 6e-4  # reached at the end of warm-up
    final_learning_rate: float = 2e-4  # at the last step of a cosine or WSD schedule
    warmup_steps: int = 100  # linear from 0; the first update already has a non-zero rate
    decay_steps: int = 0  # length of WSD's final fall, in steps; other schedules want 0
    beta1: float = 0.9  # decay of the gradient's running mean
    beta2: float = 0.95  # decay of the squared gradient's running mean
    epsilon: float = 1e-8  # added to the root of the second moment
    weight_decay: float = 0.1  # decoupled, times the learning rate; matrices only
    clip_norm: float = 1.0  # largest global norm of the gradient; 0 = no clipping
    balancing_learning_rate: float = 1e-3  # of the balancing biases; 0 freezes them
    balancing_beta1: float = 0.9  # decay of the load error's running mean
    balancing_beta2: float = 0.999  # decay of the squared load error's running mean
    balancing_epsilon: float = 1e-8  # added to the root of the load error's second moment
    balancing_weight_decay: float = 0.0  # decoupled, pulls the biases of the experts to 0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "schedule", Schedule(self.schedule))
        except ValueError:
            choices = ", ".join(Schedule)
            raise ConfigError(
                f"optimizer.schedule={self.schedule!r} must be one of: {choices}"
            ) from None
        for name in _NOT_NEGATIVE:
            _require(self, name, getattr(self, name) >= 0, "must not be negative")
        for name in _SHARES:
            _require(self, name, 0 <= getattr(self, name) < 1, "must lie in [0, 1)")
        for name in ("epsilon", "balancing_epsilon"):
            _require(self, name, getattr(self, name) > 0, "must be positive")
        is_wsd = self.schedule is Schedule.WSD
        _require(
            self,
            "decay_steps",
            (self.decay_steps > 0) == is_wsd,
            "must be positive with schedule=wsd, and 0 with every other schedule",
        )


_NOT_NEGATIVE = (
    "peak_learning_rate",
    "final_learning_rate",
    "warmup_steps",
    "decay_steps",
    "weight_decay",
    "clip_norm",
    "balancing_learning_rate",
    "balancing_weight_decay",
)
_SHARES = ("beta1", "beta2", "balancing_beta1", "balancing_beta2")


def _require(config: OptimizerConfig, name: str, condition: bool, rule: str) -> None:
    if not condition:
        raise ConfigError(f"optimizer.{name}={getattr(config, name)!r}: {rule}")
