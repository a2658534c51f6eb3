"""The length reward: among correct answers, shorter is worth more.

For a group of G with task rewards r_i in {0, 1}, K correct, p = K / G, and lengths l_i in
generated tokens (thinking included):

    l_min    = shortest correct answer
    lambda_i = 1/2 - clamp((l_i - l_min) / (l_max - l_min), 0, 1)
    lt_i     = 1/2 if l_i <= l_min + T_l else lambda_i
    m_i      = [p > p* - T_acc] [p > 1/G] [r_i = 1]
    bonus_i  = c * p * m_i * lt_i

l_max is a constant; p* is the running maximum of the source's solve rate, so that nothing is
shortened while accuracy falls. Source: arXiv 2605.05365 eq. 8-10. The report gives no l_max, T_l,
T_acc or ramp of c; the values here are ours. p* follows the mean solve rate of a source's groups in
a batch (a single lucky group would otherwise set it to 1 for good), the current batch included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Float, Int

from zaya_jax.rl.errors import RLError


@dataclasses.dataclass(frozen=True)
class LengthRewardConfig:
    """Settings of the length reward.

    Raises:
      RLError: on construction, when a field breaks a rule.
    """

    longest: int = 81_920  # l_max in tokens
    length_tolerance: int = 1_000  # T_l: as good as the shortest up to that many tokens more
    accuracy_tolerance: float = 0.05  # T_acc: how far the solve rate may be below its best
    coefficient: float = 1.0  # c at the end of the ramp; 0 = off
    ramp_steps: int = 0  # steps over which c rises linearly from 0

    def __post_init__(self) -> None:
        for name, least in (("longest", 1), ("length_tolerance", 0), ("coefficient", 0)):
            if not getattr(self, name) >= least:
                raise RLError(f"length reward: {name}={getattr(self, name)!r}: at least {least}")
        if not self.accuracy_tolerance > 0:
            raise RLError(
                f"length reward: accuracy_tolerance={self.accuracy_tolerance!r}: must be positive, "
                "or no group could pass at its best solve rate"
            )
        if self.ramp_steps < 0:
            raise RLError(f"length reward: ramp_steps={self.ramp_steps!r}: must not be negative")

    def coefficient_at(self, step: int) -> float:
        """c at a step, counted from 0."""
        if self.ramp_steps == 0:
            return self.coefficient
        return self.coefficient * min(1.0, step / self.ramp_steps)


class BestSolveRates:
    """p*: the highest mean solve rate each source ever had in a batch. Goes into checkpoints."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}

    def update(self, solve_rates: Iterable[tuple[str, float]]) -> None:
        """Takes in one batch: (source, solve rate) of each of its groups."""
        by_source: dict[str, list[float]] = {}
        for source, rate in solve_rates:
            by_source.setdefault(source, []).append(rate)
        for source, rates in by_source.items():
            mean = sum(rates) / len(rates)
            self._best[source] = max(mean, self._best.get(source, 0.0))

    def best(self, source: str) -> float:
        """p* of a source; 0 before its first batch."""
        return self._best.get(source, 0.0)

    def get_state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return dict(self._best)

    def set_state(self, state: Mapping[str, float]) -> None:
        """Continues from a checkpoint."""
        self._best = dict(state)


def length_bonus(
    task: Float[np.ndarray, " size"],
    lengths: Int[np.ndarray, " size"],
    *,
    best_solve_rate: float,
    coefficient: float,
    config: LengthRewardConfig,
) -> Float[np.ndarray, " size"]:
    """Bonus of each rollout of one group, in [-c p / 2, c p / 2].

    Args:
      task: binary task rewards.
      lengths: generated tokens.
      best_solve_rate: p* of the group's source.
      coefficient: c of this step.
      config: the constants.

    Raises:
      RLError: for rewards that are not 0 or 1.
    """
    correct = task == 1
    if not np.all(correct | (task == 0)):
        raise RLError("the length reward needs task rewards of 0 or 1; make them binary first")
    size, solve_rate = len(task), float(correct.mean())
    if correct.sum() < 2 or not solve_rate > best_solve_rate - config.accuracy_tolerance:
        return np.zeros(size)
    shortest = int(lengths[correct].min())
    if config.longest > shortest:
        share = np.clip((lengths - shortest) / (config.longest - shortest), 0.0, 1.0)
    else:  # all correct answers are as long as allowed or longer
        share = (lengths > shortest).astype(float)
    term = np.where(lengths <= shortest + config.length_tolerance, 0.5, 0.5 - share)
    return np.where(correct, coefficient * solve_rate * term, 0.0)
