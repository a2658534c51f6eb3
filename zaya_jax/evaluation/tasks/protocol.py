"""What a task is: problems, grades of answers, and what makes two answers the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from zaya_jax.evaluation.items import Item
from zaya_jax.rl.environments.protocol import Score


@runtime_checkable
class Task(Protocol):
    """Problems of one kind. An answer is what a model said after its thinking."""

    @property
    def items(self) -> Sequence[Item]:
        """In a fixed order."""
        ...

    def grade(self, item: Item, answer: str) -> Score:
        """Scores an answer; may be called from several threads.

        Raises:
          BrokenEnvironmentError: when the grader fails, rather than the answer.
        """
        ...

    def vote(self, answer: str) -> str | None:
        """What the answer comes to in a vote; equal texts vote together. None abstains."""
        ...

    def close(self) -> None:
        """Ends what grading started."""
        ...
