"""Exercises on a few digits, with worked solutions by a teacher who is careful or careless.

They have one right answer, a few words of reasoning, and wrong answers that a hurried person would
give. So they serve as supervised examples, as an environment and as attempts to aggregate; a model
small enough for a CPU can learn them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.errors import RLError

LEAST_DIGITS = 3
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Digits = Sequence[int]


class Worked(NamedTuple):
    """A solution."""

    reasoning: str
    answer: str


class Exercise(NamedTuple):
    """One kind of exercise.

    Attributes:
      instruction: what stands before the digits.
      careful: the right solution.
      careless: a solution that is mostly wrong.
    """

    instruction: str
    careful: Callable[[Digits], Worked]
    careless: Callable[[Digits, random.Random], Worked]


def _spaced(digits: Digits) -> str:
    return " ".join(map(str, digits))


def _noted(note: str, answer: str) -> Worked:
    return Worked(f"{note}: {answer}", answer)


def _as_given(digits: Digits, draw: random.Random) -> Worked:
    del draw
    return _noted("as given", _spaced(digits))


def _added(digits: Digits, slips: random.Random | None = None) -> Worked:
    """The running total, one addition a line; the slip: one total off by at most 3."""
    total, lines = digits[0], []
    slip_at = slips.randrange(1, len(digits)) if slips else 0
    for place, digit in enumerate(digits[1:], start=1):
        new = total + digit
        if slips and place == slip_at:
            new += slips.choice([-3, -2, -1, 1, 2, 3])
        lines.append(f"{total} + {digit} = {new}")
        total = new
    return Worked("\n".join(lines), str(total))


EXERCISES: dict[str, Exercise] = {
    "reverse": Exercise("Reverse", lambda d: _noted("last first", _spaced(d[::-1])), _as_given),
    "sort": Exercise("Sort", lambda d: _noted("smallest first", _spaced(sorted(d))), _as_given),
    "largest": Exercise(
        "Largest of",
        lambda d: _noted("of all", str(max(d))),
        lambda d, draw: _noted("one of them", str(draw.choice(d))),
    ),
    "add": Exercise("Add", _added, _added),
    "say": Exercise(
        "Say",
        lambda d: _noted("in words", " ".join(_WORDS[digit] for digit in d)),
        lambda d, draw: _noted("in digits", _spaced(d)),
    ),
}


class ExerciseEnvironment:
    """One kind of exercise; difficulty d means d + 3 digits."""

    def __init__(self, exercise: str, *, hardest: int = 6, held_out: bool = False) -> None:
        """Problems are split by their digits: a fifth is held out.

        Args:
          exercise: one of `EXERCISES`.
          hardest: highest difficulty, at most 6.
          held_out: whether to ask the part that is held out, or the rest.

        Raises:
          RLError: for an unknown exercise or a difficulty beyond 6.
        """
        if exercise not in EXERCISES:
            raise RLError(f"no exercise {exercise!r}; there are {', '.join(EXERCISES)}")
        if not 0 <= hardest <= 6:
            raise RLError(f"exercise {exercise!r}: hardest={hardest!r}: must lie in 0..6")
        self.hardest = hardest
        self._exercise, self._held_out = exercise, held_out

    @property
    def name(self) -> str:
        """`exercise/` and its kind."""
        return f"exercise/{self._exercise}"

    def sample(self, difficulty: int, seed: int) -> Problem:
        """Different digits, not in their natural order."""
        exercise, draw = EXERCISES[self._exercise], random.Random(seed)
        while True:
            digits = draw.sample(range(10), LEAST_DIGITS + difficulty)
            is_held_out = int("".join(map(str, digits))) % 5 == 0
            if is_held_out == self._held_out and digits != sorted(digits):
                break
        prompt = f"{exercise.instruction} {_spaced(digits)}"
        right = exercise.careful(digits).answer
        return Problem(self.name, difficulty, seed, prompt, {"digits": digits, "answer": right})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 for the right words and numbers in the right order; case and signs do not count."""
        right = problem.reference["answer"]
        return Score(float(plain_words(answer) == plain_words(right)), f"expected {right}")

    def demonstration(self, problem: Problem, *, right: bool, seed: int) -> Worked:
        """What the teacher writes, careful or not; carelessness is right by chance at times."""
        exercise, digits = EXERCISES[self._exercise], problem.reference["digits"]
        if right:
            return exercise.careful(digits)
        return exercise.careless(digits, random.Random(seed))


def plain_words(text: str) -> list[str]:
    """Words and numbers in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())
