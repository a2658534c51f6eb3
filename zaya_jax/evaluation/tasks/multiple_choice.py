"""Multiple choice with one right option (GPQA, MMLU-Pro and the like).

    {"question": "Which is a prime?", "choices": ["4", "5", "6"], "answer": "B"}

`answer` is the letter of the right option. Options are shown in the order of the file.
"""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.items import Item, listed, read_fields, text
from zaya_jax.rl.environments.maths import last_boxed
from zaya_jax.rl.environments.protocol import Score

LETTERS = string.ascii_uppercase
INSTRUCTION = "Put the letter of the right option into \\boxed{}."


def _choices(name: str, value: Any) -> list[str]:
    return listed(name, value, text, least=2)


FIELDS = {"question": text, "choices": _choices, "answer": text}


class MultipleChoice:
    """See the module."""

    def __init__(self, path: Path) -> None:
        """Reads the file."""
        self.items = [_item(*row) for row in read_fields(path, FIELDS)]

    def grade(self, item: Item, answer: str) -> Score:
        """1 when the last box holds the right letter."""
        letter = self.vote(answer)
        if letter is None:
            return Score(0.0, "no letter in a box")
        right = letter == item.reference
        return Score(float(right), "right" if right else f"{letter} instead of {item.reference}")

    def vote(self, answer: str) -> str | None:
        """The letter; `B`, `(B)`, `B.`, `\\text{B}` and `B: …` count as B."""
        content = last_boxed(answer)
        if content is None:
            return None
        content = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\{(.*)\}", r"\1", content).strip()
        found = re.match(r"\(?([A-Za-z])(?:[).:\s]|$)", content)
        return found.group(1).upper() if found else None

    def close(self) -> None:
        """Nothing runs."""


def _item(place: str, own: str, row: dict[str, Any]) -> Item:
    letters = LETTERS[: len(row["choices"])]
    if len(letters) < len(row["choices"]):
        raise EvaluationError(f"{place}: choices: more than {len(LETTERS)}")
    answer = row["answer"].strip()
    if len(answer) != 1 or answer not in letters:
        raise EvaluationError(f"{place}: answer: {answer!r} must be one letter of {letters}")
    options = [
        f"{letter}. {choice}" for letter, choice in zip(letters, row["choices"], strict=True)
    ]
    prompt = "\n".join([row["question"].rstrip(), "", *options, "", INSTRUCTION])
    return Item(own, prompt, answer)
