"""Open questions whose answers a reward model judges; and checks that come before it.

    reward = r          preference prompts
    reward = b * r      instruction prompts: b in {0, 1} is what the inner environment says

r in [0, 1] is the reward model's. It is not asked where b = 0. A reward model that fails makes the
score broken: nothing is known of the response then. Source: arXiv 2605.05365, Sec. VI (behavioural
stage).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from zaya_jax.rl.environments.protocol import (
    BrokenEnvironmentError,
    Environment,
    Problem,
    Score,
)
from zaya_jax.rl.environments.record_files import by_level, draw_record
from zaya_jax.rl.errors import RLError


@runtime_checkable
class RewardModel(Protocol):
    """Anything that says how good a response is."""

    def score(self, prompt: str, response: str) -> float:
        """In [0, 1].

        Raises:
          BrokenEnvironmentError: when it cannot say.
        """
        ...


@dataclasses.dataclass(frozen=True)
class PreferenceRecord:
    """A prompt, and a better and a worse response to it where they are known.

    Raises:
      RLError: on construction, for an empty prompt or half a pair.
    """

    prompt: str
    chosen: str = ""
    rejected: str = ""
    level: int = 0  # 0 is the easiest

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise RLError("a preference record has an empty prompt")
        if bool(self.chosen) != bool(self.rejected):
            raise RLError(f"prompt {self.prompt[:40]!r} has only one of chosen and rejected")


class PreferenceEnvironment:
    """Prompts of records, judged by the reward model alone."""

    def __init__(
        self,
        records: Sequence[PreferenceRecord],
        reward_model: RewardModel,
        *,
        name: str = "preferences",
    ) -> None:
        """Takes records whose levels count from 0 without gaps.

        Raises:
          RLError: without records or for a gap in the levels.
        """
        self.name, self._records, self._reward_model = name, list(records), reward_model
        self._levels = by_level(name, records)

    @property
    def hardest(self) -> int:
        """Highest level of the records."""
        return len(self._levels) - 1

    def sample(self, difficulty: int, seed: int) -> Problem:
        """A prompt of the level, drawn by the seed."""
        record = self._records[draw_record(self._levels, difficulty, seed)]
        return Problem(self.name, difficulty, seed, record.prompt, {})

    def score(self, problem: Problem, answer: str) -> Score:
        """What the reward model says."""
        return judged(self.name, self._reward_model, problem.prompt, answer)


class GatedEnvironment:
    """Another environment's problems; right answers are worth what the reward model says."""

    def __init__(self, inner: Environment, reward_model: RewardModel) -> None:
        """Takes an environment whose rewards are 0 or 1."""
        self._inner, self._reward_model = inner, reward_model

    @property
    def name(self) -> str:
        """The inner name with `+judged`."""
        return f"{self._inner.name}+judged"

    @property
    def hardest(self) -> int | None:
        """That of the inner one."""
        return self._inner.hardest

    def sample(self, difficulty: int, seed: int) -> Problem:
        """The inner problem."""
        return dataclasses.replace(self._inner.sample(difficulty, seed), source=self.name)

    def score(self, problem: Problem, answer: str) -> Score:
        """0 where a check fails, else the reward model's score."""
        checked = self._inner.score(dataclasses.replace(problem, source=self._inner.name), answer)
        if checked.broken or checked.reward == 0:
            return checked
        if checked.reward != 1:
            raise BrokenEnvironmentError(
                f"{self.name}: the inner environment gives {checked.reward:g}; a gate is 0 or 1"
            )
        return judged(self.name, self._reward_model, problem.prompt, answer)


def judged(name: str, reward_model: RewardModel, prompt: str, answer: str) -> Score:
    """The reward model's score of a response that says something.

    Raises:
      BrokenEnvironmentError: when it gives none, or none in [0, 1].
    """
    if not answer.strip():
        return Score(0.0, "an empty response")
    reward = reward_model.score(prompt, answer)
    if not 0 <= reward <= 1:  # NaN too
        raise BrokenEnvironmentError(f"{name}: the reward model gives {reward!r}, not in [0, 1]")
    return Score(float(reward), f"judged {reward:g}")


def agreement(reward_model: RewardModel, records: Sequence[PreferenceRecord]) -> float:
    """Share of pairs whose chosen response it scores higher; ties count half.

    Worth a look before a stage relies on a reward model: 0.5 is what a coin gets.

    Raises:
      RLError: without pairs.
      BrokenEnvironmentError: when the reward model fails.
    """
    pairs = [record for record in records if record.chosen]
    if not pairs:
        raise RLError("no record has a chosen and a rejected response to compare")
    right = 0.0
    for pair in pairs:
        better, worse = (
            reward_model.score(pair.prompt, response) for response in (pair.chosen, pair.rejected)
        )
        right += 0.5 if better == worse else float(better > worse)
    return right / len(pairs)
