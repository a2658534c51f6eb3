"""Short answers with one right wording: words and numbers in their order.

    {"problem": "Sort 3 1 2", "answer": "1 2 3"}

Case, punctuation and white space do not count.
"""

from __future__ import annotations

from pathlib import Path

from zaya_jax.evaluation.items import Item, read_fields, text
from zaya_jax.rl.environments.exercises import plain_words
from zaya_jax.rl.environments.protocol import Score

FIELDS = {"problem": text, "answer": text}


class Exact:
    """See the module."""

    def __init__(self, path: Path) -> None:
        """Reads the file."""
        self.items = [
            Item(own, row["problem"], row["answer"]) for _, own, row in read_fields(path, FIELDS)
        ]

    def grade(self, item: Item, answer: str) -> Score:
        """1 for the words and numbers of the reference."""
        right = plain_words(answer) == plain_words(item.reference)
        return Score(float(right), f"expected {item.reference}")

    def vote(self, answer: str) -> str | None:
        """The words and numbers; an answer without any does not vote."""
        return " ".join(plain_words(answer)) or None

    def close(self) -> None:
        """Nothing is held."""
