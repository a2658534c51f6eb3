"""Tiny tasks on digits, for demonstrations and tests of learning on a CPU.

Each has a wrong habit: what a careless teacher would answer. A policy that imitated a teacher who
is right now and then starts with a known solve rate, and reinforcement finds the better habit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.errors import RLError

LEAST_DIGITS = 3


class _Task(NamedTuple):
    right: Callable[[str], str]
    wrong: Callable[[str], str]


TASKS: dict[str, _Task] = {
    "reverse": _Task(lambda digits: digits[::-1], lambda digits: digits),
    "sort": _Task(lambda digits: "".join(sorted(digits)), lambda digits: digits),
    "largest": _Task(max, min),
}


class PracticeEnvironment:
    """One task; difficulty d means d + 3 digits."""

    hardest = 5

    def __init__(self, task: str, *, held_out: bool = False) -> None:
        """Problems are split by their digits: a fifth is held out.

        Raises:
          RLError: for an unknown task.
        """
        if task not in TASKS:
            raise RLError(f"no practice task {task!r}; there are {', '.join(TASKS)}")
        self._task, self._held_out = task, held_out

    @property
    def name(self) -> str:
        """`practice/` and the task."""
        return f"practice/{self._task}"

    def sample(self, difficulty: int, seed: int) -> Problem:
        """Different digits whose order the wrong habit gets wrong."""
        draw, task = random.Random(seed), TASKS[self._task]
        while True:
            digits = "".join(draw.sample("0123456789", LEAST_DIGITS + difficulty))
            is_held_out = int(digits) % 5 == 0
            if is_held_out == self._held_out and task.right(digits) != task.wrong(digits):
                break
        prompt = f"{self._task} {digits}="
        return Problem(self.name, difficulty, seed, prompt, {"digits": digits})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 for exactly the right digits."""
        right = TASKS[self._task].right(problem.reference["digits"])
        return Score(float(answer.strip() == right), f"expected {right}")

    def demonstration(self, problem: Problem, *, right: bool) -> str:
        """What a teacher would answer, careful or not."""
        task, digits = TASKS[self._task], problem.reference["digits"]
        return task.right(digits) if right else task.wrong(digits)
