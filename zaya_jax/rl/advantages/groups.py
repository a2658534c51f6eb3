"""The rewards that advantages are made from."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.errors import RLError


@dataclasses.dataclass(frozen=True)
class RewardGroups:
    """Rewards of whole groups: all rollouts of each problem, no group with one missing.

    Attributes:
      task: what the verifier gave, after the repetition gate, in [0, 1].
      bonus: what is added to it when it is shaped (the length reward); 0 where there is none.

    Raises:
      RLError: on construction, for groups of fewer than 2 rollouts (their mean is the rollout
        itself, so that an advantage says nothing or is huge), rewards outside [0, 1], or NaN.
    """

    task: Float[np.ndarray, "groups size"]
    bonus: Float[np.ndarray, "groups size"]

    def __post_init__(self) -> None:
        if self.task.ndim != 2 or self.task.shape != self.bonus.shape:
            raise RLError(
                f"rewards {self.task.shape} and bonus {self.bonus.shape} must both be "
                "[groups, size]"
            )
        if self.task.shape[1] < 2:
            raise RLError(
                f"groups of {self.task.shape[1]} rollout: an advantage compares at least 2; drop "
                "groups that lost rollouts"
            )
        if not np.all((self.task >= 0) & (self.task <= 1)):
            bad = self.task[~((self.task >= 0) & (self.task <= 1))][0]
            raise RLError(f"task reward {bad}: must lie in [0, 1]; make it binary first")
        if not np.all(np.isfinite(self.bonus)):
            raise RLError("a reward bonus is not finite")

    @property
    def shaped(self) -> Float[np.ndarray, "groups size"]:
        """Task reward plus bonus."""
        return self.task + self.bonus
