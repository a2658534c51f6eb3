"""What a rollout is: everything the trainer needs to know about one sampled response."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from zaya_jax.rl.environments.protocol import Problem
from zaya_jax.rl.errors import RLError


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One response, as the engine sampled it and the environment scored it.

    Attributes:
      prompt: token ids, int32.
      tokens: response ids, the stop token included, int32.
      log_probs: log mu_t of each response token, from the distribution that sampled it, float32.
      versions: of the weights that sampled each response token, int32.
      routes: raw router classes [rows, layers], row j for token j of prompt and response together;
        the last token is never fed. None where the engine does not record them.
      reward: task reward in [0, 1], before any gate.
      truncated: ended by its length rather than by itself.
      broken: the verifier failed, so that the reward says nothing.
      reason: the verifier's words.

    Raises:
      RLError: on construction, when lengths do not fit together or a number is not one.
    """

    prompt: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray
    versions: np.ndarray
    routes: np.ndarray | None
    reward: float
    truncated: bool
    broken: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        length = len(self.tokens)
        if len(self.prompt) == 0 or length == 0:
            raise RLError(
                f"a rollout of {len(self.prompt)} prompt and {length} response tokens: "
                "both must be at least 1"
            )
        for name in ("log_probs", "versions"):
            if len(getattr(self, name)) != length:
                raise RLError(f"a rollout of {length} tokens has {len(getattr(self, name))} {name}")
        if not np.all(self.log_probs <= 0):  # also catches NaN
            bad = self.log_probs[~(self.log_probs <= 0)][0]
            raise RLError(f"a rollout's log-probability is {bad}: must not exceed 0")
        if not 0 <= self.reward <= 1:
            raise RLError(f"a rollout's reward is {self.reward}: must lie in [0, 1]")

    def to_plain(self) -> dict[str, Any]:
        """JSON values that `from_plain` takes back without loss."""
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        routes = None if self.routes is None else self.routes.tolist()
        rest = {name: getattr(self, name) for name in ("reward", "truncated", "broken", "reason")}
        return {**arrays, "routes": routes, **rest}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Rollout:
        """The inverse of `to_plain`."""
        arrays = {name: np.array(plain[name], dtype) for name, dtype in _ARRAYS.items()}
        routes = None if plain["routes"] is None else np.array(plain["routes"], np.uint8)
        return cls(**{**plain, **arrays, "routes": routes})


_ARRAYS = {
    "prompt": np.int32,
    "tokens": np.int32,
    "log_probs": np.float32,
    "versions": np.int32,
}


@dataclasses.dataclass(frozen=True)
class RolloutGroup:
    """All rollouts of one problem.

    Attributes:
      problem: what was asked.
      rollouts: every one of them.
      started: version of the weights when the first of them began; the group's age counts from it.
    """

    problem: Problem
    rollouts: tuple[Rollout, ...]
    started: int

    @property
    def rewards(self) -> Float[np.ndarray, " size"]:
        """Task rewards, float64."""
        return np.array([rollout.reward for rollout in self.rollouts], np.float64)

    @property
    def lengths(self) -> Int[np.ndarray, " size"]:
        """Generated tokens."""
        return np.array([len(rollout.tokens) for rollout in self.rollouts])

    def check(self, size: int) -> str | None:
        """Why this group must not be trained on; None when it may be."""
        if len(self.rollouts) != size:
            return f"{len(self.rollouts)} of {size} rollouts"
        broken = [rollout.reason for rollout in self.rollouts if rollout.broken]
        return f"a verifier failed: {broken[0]}" if broken else None

    def to_plain(self) -> dict[str, Any]:
        """JSON values that `from_plain` takes back without loss."""
        return {
            "problem": dataclasses.asdict(self.problem),
            "rollouts": [rollout.to_plain() for rollout in self.rollouts],
            "started": self.started,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> RolloutGroup:
        """The inverse of `to_plain`."""
        rollouts = tuple(Rollout.from_plain(rollout) for rollout in plain["rollouts"])
        return cls(Problem(**plain["problem"]), rollouts, plain["started"])
