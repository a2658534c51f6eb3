"""Which matrices get adapters, how large they are, and what their leaves are called.

Apart from `zaya_jax.lora`, so that what reads checkpoints does not import jax.
"""

from __future__ import annotations

import dataclasses
import enum
import math

from zaya_jax.config import ConfigError

Path = tuple[str, ...]  # names of a parameter, from the root of its tree

A, B = "lora_a", "lora_b"  # names of an adapter's leaves


class LoraTarget(enum.StrEnum):
    """Matrices that can be adapted."""

    ATTENTION = "attention"  # projections of queries, keys, values and the output
    EXPERTS = "experts"  # gate_up and down of every expert
    ROUTER = "router"  # down-projection and the three layers of its MLP


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Adapters instead of training everything.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    rank: int = 0  # of every adapter; 0: none, all parameters are trained
    alpha: float = 16.0  # the product counts alpha / rank
    targets: tuple[str, ...] = ("attention",)  # of: attention, experts, router

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        if self.rank < 0:
            raise ConfigError(f"lora.rank={self.rank!r}: must not be negative")
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"lora.alpha={self.alpha!r}: must be positive")
        for target in self.targets:
            if target not in tuple(LoraTarget):
                raise ConfigError(f"lora.targets: {target!r} is none of: {', '.join(LoraTarget)}")
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"lora.targets={self.targets!r}: must name each target once")

    @property
    def scale(self) -> float:
        """What the product is multiplied by."""
        return self.alpha / self.rank


def target_of(path: Path) -> LoraTarget | None:
    """What the parameter at this path of names belongs to; None where it has no adapter."""
    if path[-2:] in (("experts", "gate_up"), ("experts", "down")):
        return LoraTarget.EXPERTS
    if path[-1] != "weight" or len(path) < 3 or path[-2].endswith("norm"):
        return None
    if "attention" in path:
        return LoraTarget.ATTENTION
    return LoraTarget.ROUTER if path[-3] == "router" else None
