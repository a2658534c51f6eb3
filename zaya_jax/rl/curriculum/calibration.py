"""Finding the difficulty at which an environment is solved half of the time, by few groups.

The solve rate over difficulty is taken to be one of many logistic curves (item response theory):

    p(d) = sigmoid(-(d - mu) / s)

A pool of curves (mu, s) stands for what is known; each group of G rollouts at difficulty d with k
solved multiplies every curve's weight by Binomial(k; G, p(d)). Difficulties are chosen by Thompson
sampling: draw a curve by weight and take the d at which it expects p*,

    d = mu + s * ln((1 - p*) / p*),   p* = 0.5, with probability epsilon uniform in 0.5 +- 0.25

When the effective sample size (sum w)^2 / sum w^2 falls below a share of the pool, curves are drawn
again by weight, moved a little, and re-weighted by the history, older groups counting less.

Source: arXiv 2605.05365, Sec. VI. Pool size, priors, epsilon, thresholds and the recency weights
are not published; those here are ours. Every group also counts a tenth of a right and of a wrong
rollout, so that a curve survives one surprise.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.errors import RLError


@dataclasses.dataclass(frozen=True)
class CalibrationConfig:
    """Settings of the calibration of one environment.

    Raises:
      RLError: on construction, when a field breaks a rule.
    """

    hardest: int = 40  # highest difficulty to consider; the environment's own end if lower
    curves: int = 512  # in the pool
    slope_range: tuple[float, float] = (0.3, 4.0)  # of s, log-uniform
    target: float = 0.5  # p*, the solve rate looked for
    target_spread: float = 0.25  # exploring draws use p* +- this
    exploration: float = 0.1  # epsilon
    resample_below: float = 0.3  # effective sample size as a share of the pool
    recency: float = 0.97  # weight of a group relative to the one after it

    def __post_init__(self) -> None:
        low, high = self.slope_range
        rules = {
            "hardest": self.hardest >= 0,
            "curves": self.curves >= 16,
            "slope_range": 0 < low <= high,
            "target": self.target - self.target_spread > 0,
            "target_spread": self.target_spread >= 0 and self.target + self.target_spread < 1,
            "exploration": 0 <= self.exploration <= 1,
            "resample_below": 0 < self.resample_below < 1,
            "recency": 0 < self.recency <= 1,
        }
        for name, holds in rules.items():
            if not holds:
                raise RLError(f"calibration: {name}={getattr(self, name)!r} is out of range")


class Calibration:
    """What is known of one environment; everything it draws comes from its own random stream."""

    def __init__(self, config: CalibrationConfig, seed: int) -> None:
        self.config = config
        self._random = np.random.default_rng(seed)
        self._history: list[tuple[int, int, int]] = []  # difficulty, solved, group size
        # Curves whose middle lies outside stand for environments never or always solved.
        margin = 2.0 + 0.1 * config.hardest
        self._middle = self._random.uniform(-margin, config.hardest + margin, config.curves)
        low, high = np.log(config.slope_range)
        self._slope = np.exp(self._random.uniform(low, high, config.curves))
        self._log_weight = np.zeros(config.curves)

    def propose(self) -> int:
        """Difficulty of the next group."""
        config = self.config
        curve = self._random.choice(config.curves, p=self._weights())
        target = config.target
        if self._random.random() < config.exploration:
            target += self._random.uniform(-config.target_spread, config.target_spread)
        wanted = self._middle[curve] + self._slope[curve] * np.log((1 - target) / target)
        return int(np.clip(np.rint(wanted), 0, config.hardest))

    def observe(self, difficulty: int, solved: int, size: int) -> None:
        """Takes in one group.

        Raises:
          RLError: for more solved than there are, or an empty group.
        """
        if not 0 <= solved <= size or size == 0:
            raise RLError(f"calibration: {solved} solved of {size} rollouts")
        self._history.append((difficulty, solved, size))
        self._log_weight += self._log_likelihood(difficulty, solved, size)
        weights = self._weights()
        effective = 1.0 / float((weights**2).sum())
        if effective < self.config.resample_below * self.config.curves:
            self._resample(weights)

    def estimate(self) -> int:
        """Difficulty of the target solve rate: the weighted median over curves."""
        config = self.config
        target = np.log((1 - config.target) / config.target)
        wanted = self._middle + self._slope * target
        order = np.argsort(wanted)
        cumulative = np.cumsum(self._weights()[order])
        median = wanted[order][np.searchsorted(cumulative, 0.5)]
        return int(np.clip(np.rint(median), 0, config.hardest))

    def solve_rate(self, difficulty: int) -> float:
        """Expected solve rate at a difficulty."""
        return float((self._weights() * self._rates(difficulty)).sum())

    @property
    def groups(self) -> int:
        """Observed so far."""
        return len(self._history)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps; plain JSON values."""
        return {
            "history": [list(group) for group in self._history],
            "middle": self._middle.tolist(),
            "slope": self._slope.tolist(),
            "log_weight": self._log_weight.tolist(),
            "random": self._random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint."""
        self._history = [(int(d), int(k), int(g)) for d, k, g in state["history"]]
        self._middle, self._slope = np.array(state["middle"]), np.array(state["slope"])
        self._log_weight = np.array(state["log_weight"])
        self._random.bit_generator.state = state["random"]

    def _weights(self) -> Float[np.ndarray, " curves"]:
        weights = np.exp(self._log_weight - self._log_weight.max())
        return weights / weights.sum()

    def _rates(self, difficulty: int) -> Float[np.ndarray, " curves"]:
        z = np.clip((difficulty - self._middle) / self._slope, -30, 30)
        return 1.0 / (1.0 + np.exp(z))

    def _log_likelihood(
        self, difficulty: int, solved: int, size: int
    ) -> Float[np.ndarray, " curves"]:
        rate = self._rates(difficulty)
        right, wrong = solved + 0.1, size - solved + 0.1
        return right * np.log(rate + 1e-12) + wrong * np.log(1.0 - rate + 1e-12)

    def _resample(self, weights: np.ndarray) -> None:
        """New curves near likely ones, weighted by the history with recency."""
        config = self.config
        chosen = self._random.choice(config.curves, config.curves, p=weights)
        spread = max(0.25, float(np.sqrt(np.cov(self._middle, aweights=weights))))
        self._middle = self._middle[chosen] + self._random.normal(0, 0.5 * spread, config.curves)
        low, high = config.slope_range
        moved = self._slope[chosen] * np.exp(self._random.normal(0, 0.2, config.curves))
        self._slope = np.clip(moved, low, high)
        self._log_weight = np.zeros(config.curves)
        for age, group in enumerate(reversed(self._history)):
            self._log_weight += config.recency**age * self._log_likelihood(*group)
