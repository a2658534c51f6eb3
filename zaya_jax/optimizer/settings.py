"""The optimiser's settings, and their defaults."""

from __future__ import annotations

import dataclasses
import enum

from zaya_jax.config import ConfigError, Kernels


class Schedule(enum.StrEnum):
    """How the learning rate moves after its linear warm-up."""

    COSINE = "cosine"  # half a cosine from peak to final over the rest of the run
    WSD = "wsd"  # hold the peak, then fall linearly to final over the last `decay_steps`
    CONSTANT = "constant"  # hold the peak


class OptimizerKind(enum.StrEnum):
    """The rule that moves matrices; everything else is always moved by AdamW."""

    ADAMW = "adamw"
    MUON = "muon"


class BalancingForm(enum.StrEnum):
    """How the balancing biases follow the load."""

    ADAMW = "adamw"  # AdamW on load minus fair share, arXiv 2605.05365 eq. 5
    SIGN = "sign"  # one learning rate against the sign of the error, arXiv 2408.15664
    PID = "pid"  # proportional, integral and derivative terms of the relative error


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The rule for the parameters, and the one for the router's balancing biases.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    kind: OptimizerKind = OptimizerKind.ADAMW  # rule for matrices; the rest is always AdamW's
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
    offload_state: bool = False  # moments wait in host memory between updates; same numbers
    muon_momentum: float = 0.95  # decay of the gradient's running mean; 0 = none, and no buffer
    muon_nesterov: bool = True  # look ahead by one gradient; has no effect without momentum
    muon_steps: int = 5  # Newton-Schulz iterations
    muon_dtype: str = "float32"  # of their products; bfloat16 is as good and quicker on GPUs
    muon_kernels: Kernels = Kernels.AUTO  # of Newton-Schulz; on a mesh auto is the XLA form
    muon_rms: float = 0.2  # times sqrt(max(rows, columns)): 0.2 gives updates of AdamW's size
    muon_split_gate_up: bool = False  # experts' gate and up as two matrices instead of one
    muon_least_gradient: float = 1e-11  # a matrix with no larger entry in its gradient stays put
    balancing_rule: BalancingForm = BalancingForm.ADAMW  # how the biases follow the load
    balancing_learning_rate: float = 1e-3  # of the balancing biases; 0 freezes them
    balancing_final_learning_rate: float | None = None  # linear to it over the run; None: constant
    balancing_warmup_steps: int = 0  # linear from 0, as for the parameters
    balancing_beta1: float = 0.9  # decay of the load error's running mean
    balancing_beta2: float = 0.999  # decay of the squared load error's running mean
    balancing_epsilon: float = 1e-8  # added to the root of the load error's second moment
    balancing_weight_decay: float = 0.0  # decoupled, pulls the biases of the experts to 0
    balancing_proportional: float = 1.0  # gain on the error's change; rule pid only
    balancing_integral: float = 1.0  # gain on the error: 1 moves a doubly loaded expert by one rate
    balancing_derivative: float = 0.0  # gain on the change of the error's change; rule pid only

    def __post_init__(self) -> None:
        for name, enum_type in _ENUMS.items():
            object.__setattr__(self, name, _parse(name, getattr(self, name), enum_type))
        for name in _NOT_NEGATIVE:
            _require(self, name, getattr(self, name) >= 0, "must not be negative")
        for name in _SHARES:
            _require(self, name, 0 <= getattr(self, name) < 1, "must lie in [0, 1)")
        for name in ("epsilon", "balancing_epsilon"):
            _require(self, name, getattr(self, name) > 0, "must be positive")
        _require(self, "muon_steps", self.muon_steps >= 1, "must be at least 1")
        _require(
            self,
            "muon_dtype",
            self.muon_dtype in ("float32", "bfloat16"),
            "must be float32 or bfloat16",
        )
        final = self.balancing_final_learning_rate
        _require(
            self,
            "balancing_final_learning_rate",
            final is None or final >= 0,
            "must be none or not negative",
        )
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
    "muon_rms",
    "muon_least_gradient",
    "balancing_learning_rate",
    "balancing_warmup_steps",
    "balancing_weight_decay",
    "balancing_proportional",
    "balancing_integral",
    "balancing_derivative",
)
_SHARES = ("beta1", "beta2", "muon_momentum", "balancing_beta1", "balancing_beta2")
_ENUMS: dict[str, type[enum.StrEnum]] = {
    "kind": OptimizerKind,
    "schedule": Schedule,
    "balancing_rule": BalancingForm,
    "muon_kernels": Kernels,
}


def _parse(name: str, value: str, enum_type: type[enum.StrEnum]) -> enum.StrEnum:
    try:
        return enum_type(value)
    except ValueError:
        choices = ", ".join(enum_type)
        raise ConfigError(f"optimizer.{name}={value!r} must be one of: {choices}") from None


def _require(config: OptimizerConfig, name: str, condition: bool, rule: str) -> None:
    if not condition:
        raise ConfigError(f"optimizer.{name}={getattr(config, name)!r}: {rule}")
