"""Difficulty while training: up when a group does well, down when it fails whole.

For a finished group made at difficulty d_group, with mean binary reward rbar, in an environment now
at d:

    d := d + 1   if rbar > raise_above and d_group = d
    d := d - 1   if rbar = 0           and d_group = d
    d unchanged otherwise, and always within 0 .. hardest

Groups in flight when d moved do not count, so that one run of luck moves d once. The published rule
names the condition d_group = d for the first case only and says in words that updates need it;
both have it here. Source: arXiv 2605.05365 eq. 11.

An environment of share s is drawn with weight s / (1 + groups finished / s), so that slow ones
catch up and the groups of all come to stand in the ratio of their shares; without shares all are 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from zaya_jax.rl.errors import RLError


@dataclasses.dataclass
class Progress:
    """Where one environment stands.

    Attributes:
      difficulty: of the next problem.
      hardest: highest allowed; None without end.
      groups: finished so far.
      raised: times the difficulty went up.
      lowered: times it went down.
    """

    difficulty: int
    hardest: int | None
    groups: int = 0
    raised: int = 0
    lowered: int = 0


class OnlineScheduler:
    """Difficulties of all environments of a run, and which one comes next."""

    def __init__(
        self,
        starts: Mapping[str, tuple[int, int | None]],
        seed: int,
        *,
        raise_above: float = 0.7,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        """Starts every environment at its (difficulty, hardest).

        Args:
          starts: by name.
          seed: of the draws.
          raise_above: mean reward from which a difficulty goes up.
          shares: of the groups, by name; those not named have 1.

        Raises:
          RLError: without environments, for a start outside 0 .. hardest, or for a share that is
            not positive or of no environment.
        """
        if not starts:
            raise RLError("a curriculum needs at least 1 environment")
        if not 0 < raise_above < 1:
            raise RLError(f"curriculum: raise_above={raise_above!r}: must lie between 0 and 1")
        for name, (difficulty, hardest) in starts.items():
            if difficulty < 0 or (hardest is not None and difficulty > hardest):
                raise RLError(
                    f"environment {name!r} starts at difficulty {difficulty}, outside "
                    f"0..{'' if hardest is None else hardest}"
                )
        self._shares = dict.fromkeys(starts, 1.0) | dict(shares or {})
        for name, share in self._shares.items():
            if name not in starts or not share > 0:
                known = ", ".join(starts)
                raise RLError(
                    f"curriculum: share {share!r} of {name!r}: must be positive, and the "
                    f"environment one of {known}"
                )
        self.raise_above = raise_above
        self._progress = {name: Progress(d, top) for name, (d, top) in starts.items()}
        self._random = np.random.default_rng(seed)

    def next(self) -> tuple[str, int, int]:
        """Environment, difficulty and seed of the next problem."""
        names = list(self._progress)
        shares = np.array([self._shares[name] for name in names])
        groups = np.array([self._progress[name].groups for name in names])
        weights = shares / (1.0 + groups / shares)
        name = names[self._random.choice(len(names), p=weights / weights.sum())]
        seed = int(self._random.integers(2**31))
        return name, self._progress[name].difficulty, seed

    def observe(self, name: str, difficulty: int, mean_reward: float) -> None:
        """Takes in a finished group of binary rewards.

        Raises:
          RLError: for an environment it does not know.
        """
        if name not in self._progress:
            raise RLError(f"curriculum: no environment {name!r}")
        progress = self._progress[name]
        progress.groups += 1
        if difficulty != progress.difficulty:
            return
        if mean_reward > self.raise_above and progress.difficulty != progress.hardest:
            progress.difficulty += 1
            progress.raised += 1
        elif mean_reward == 0 and progress.difficulty > 0:
            progress.difficulty -= 1
            progress.lowered += 1

    def start_at(self, difficulties: Mapping[str, int]) -> None:
        """Moves environments to where they are to start.

        Raises:
          RLError: for an environment it does not know, or a difficulty it does not have.
        """
        for name, difficulty in difficulties.items():
            progress = self._progress.get(name)
            if progress is None:
                raise RLError(f"curriculum: no environment {name!r}")
            top = progress.hardest
            if difficulty < 0 or (top is not None and difficulty > top):
                raise RLError(f"curriculum: {name!r} has no difficulty {difficulty}")
            progress.difficulty = difficulty

    @property
    def progress(self) -> Mapping[str, Progress]:
        """A copy of where every environment stands, for logs."""
        return {name: dataclasses.replace(p) for name, p in self._progress.items()}

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps; plain JSON values."""
        progress = {name: dataclasses.asdict(p) for name, p in self._progress.items()}
        return {"progress": progress, "random": self._random.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint of the same environments.

        Raises:
          RLError: when the environments differ.
        """
        if set(state["progress"]) != set(self._progress):
            different = sorted(set(state["progress"]) ^ set(self._progress))
            raise RLError(f"the saved curriculum has other environments: {', '.join(different)}")
        self._progress = {n: Progress(**state["progress"][n]) for n in self._progress}
        self._random.bit_generator.state = state["random"]
