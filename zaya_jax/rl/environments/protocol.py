"""What an environment is: problems at a difficulty, and scores of responses to them."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

from zaya_jax.rl.errors import RLError


class BrokenEnvironmentError(RLError):
    """An environment could not do its part: nothing was learnt about the response."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem, reproducible from its first three fields.

    Attributes:
      source: name of the environment; rewards, curriculum and p* are kept by it.
      difficulty: level it was made at.
      seed: what it was drawn with.
      prompt: the user's turn.
      reference: what the environment needs to score a response; plain JSON values.
    """

    source: str
    difficulty: int
    seed: int
    prompt: str
    reference: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Score:
    """What a verifier found.

    Attributes:
      reward: in [0, 1].
      reason: why, in a few words, for logs.
      broken: the verifier itself failed; the reward says nothing and the group must be dropped.

    Raises:
      RLError: on construction, for a reward outside [0, 1].
    """

    reward: float
    reason: str
    broken: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.reward <= 1:
            raise RLError(f"reward {self.reward!r} ({self.reason}): must lie in [0, 1]")


@runtime_checkable
class Environment(Protocol):
    """A family of problems. Thinking is cut from responses before `score` sees them."""

    @property
    def name(self) -> str:
        """Unique among the environments of a run."""
        ...

    @property
    def hardest(self) -> int | None:
        """Highest difficulty; None where there is no end. The lowest is 0."""
        ...

    def sample(self, difficulty: int, seed: int) -> Problem:
        """The problem of this difficulty and seed.

        Raises:
          BrokenEnvironmentError: when there is none, or making it takes too long.
        """
        ...

    def score(self, problem: Problem, answer: str) -> Score:
        """Scores the visible part of a response.

        Raises:
          BrokenEnvironmentError: when the verifier fails, rather than the response.
        """
        ...


def sample_problem(environment: Environment, difficulty: int, seed: int) -> Problem:
    """The problem, whatever else goes wrong than what the environment foresaw.

    Raises:
      BrokenEnvironmentError: when there is no such problem, or the environment fails.
    """
    try:
        problem = environment.sample(difficulty, seed)
    except BrokenEnvironmentError:
        raise
    except Exception as failure:
        raise BrokenEnvironmentError(
            f"{environment.name}: sample({difficulty}, {seed}) raised "
            f"{type(failure).__name__}: {failure}"
        ) from failure
    if not isinstance(problem, Problem):
        raise BrokenEnvironmentError(
            f"{environment.name}: sample({difficulty}, {seed}) gave {problem!r}, must give a "
            "Problem"
        )
    return problem


def score_response(
    environment: Environment, problem: Problem, response: str, *, has_thinking: bool = True
) -> Score:
    """Cuts the thinking, then scores. A failing verifier gives a broken score, not an exception.

    Whatever it raises: one bad verifier among hundreds of environments must cost its groups only.

    Args:
      environment: the one that made the problem.
      problem: what was asked.
      response: all generated text.
      has_thinking: whether the model was asked to think first, in which case an answer counts only
        after the end of its thinking.
    """
    answer = strip_thinking(response) if has_thinking else response
    if answer is None:
        return Score(0.0, "no end of thinking")
    try:
        score = environment.score(problem, answer)
    except BrokenEnvironmentError as failure:
        return Score(0.0, str(failure), broken=True)
    except Exception as failure:  # a fault of the verifier, not of the response
        reason = f"{environment.name}: the verifier raised {type(failure).__name__}: {failure}"
        return Score(0.0, reason, broken=True)
    if not isinstance(score, Score):
        reason = f"{environment.name}: the verifier gave {score!r}, must give a Score"
        return Score(0.0, reason, broken=True)
    return score


THINK_START, THINK_END = "<think>", "</think>"


def strip_thinking(response: str) -> str | None:
    """The text after the last end of thinking; None while the thinking has not ended.

    A response without any think marker is all answer. Text in the thinking never reaches a
    verifier: an answer tag there would score without having been given.
    """
    _, marker, answer = response.rpartition(THINK_END)
    if not marker:
        return None if THINK_START in response else response
    return None if THINK_START in answer else answer


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """Content of the last complete pair of tags, without surrounding space; None without one."""
    before, closing, _ = text.rpartition(f"</{tag}>")
    _, opening, content = before.rpartition(f"<{tag}>")
    return content.strip() if closing and opening else None


ANSWER_INSTRUCTION = "Give the final answer between <answer> and </answer>."
