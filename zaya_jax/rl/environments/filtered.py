"""An environment with some of its problems only, those that a filter kept.

Difficulties at which none was kept are skipped: the kept ones count from 0 without gaps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from zaya_jax.rl.environments.protocol import Environment, Problem, Score
from zaya_jax.rl.errors import RLError


class FilteredEnvironment:
    """See the module; keeps the inner one's name."""

    def __init__(self, inner: Environment, kept: Iterable[tuple[int, int]]) -> None:
        """Takes the inner difficulties and seeds of the problems to keep.

        Raises:
          RLError: when there is none.
        """
        by_difficulty: dict[int, list[int]] = {}
        for difficulty, seed in kept:
            by_difficulty.setdefault(difficulty, []).append(seed)
        if not by_difficulty:
            raise RLError(f"{inner.name}: no problem was kept")
        self._inner, self._difficulties = inner, sorted(by_difficulty)
        self._seeds = [by_difficulty[difficulty] for difficulty in self._difficulties]

    @property
    def name(self) -> str:
        """That of the inner one."""
        return self._inner.name

    @property
    def hardest(self) -> int:
        """Difficulties that have problems, less one."""
        return len(self._difficulties) - 1

    def sample(self, difficulty: int, seed: int) -> Problem:
        """One of the kept problems, by the seed; `Problem.seed` is the inner one's."""
        seeds = self._seeds[difficulty]
        problem = self._inner.sample(self._difficulties[difficulty], seeds[seed % len(seeds)])
        return dataclasses.replace(problem, difficulty=difficulty)

    def score(self, problem: Problem, answer: str) -> Score:
        """The inner score."""
        difficulty = self._difficulties[problem.difficulty]
        return self._inner.score(dataclasses.replace(problem, difficulty=difficulty), answer)
