"""Competition maths: one final answer in a box, compared by math-verify (AIME, HMMT and the like).

    {"problem": "What is $1 + 1$?", "answer": "2"}

`answer` is LaTeX without the box.
"""

from __future__ import annotations

from pathlib import Path

from zaya_jax.data.boxed_answer import ask_boxed
from zaya_jax.evaluation.items import Item, read_fields, text
from zaya_jax.rl.environments.maths import (
    MathsEnvironment,
    MathsRecord,
    last_boxed,
)
from zaya_jax.rl.environments.protocol import Problem, Score

FIELDS = {"problem": text, "answer": text}


class FinalAnswer:
    """See the module."""

    def __init__(self, path: Path, *, unsafe: bool = False) -> None:
        """Reads the file; `unsafe` as for `zaya_jax.rl.sandbox.Sandbox`."""
        self.items = [
            Item(own, ask_boxed(row["problem"]), row["answer"])
            for _, own, row in read_fields(path, FIELDS)
        ]
        records = [MathsRecord(item.prompt, item.reference) for item in self.items]
        self._environment = MathsEnvironment(records, name=path.stem, unsafe=unsafe)

    def grade(self, item: Item, answer: str) -> Score:
        """1 when the last box equals the reference."""
        problem = Problem(item.id, 0, 0, item.prompt, {"answer": item.reference})
        return self._environment.score(problem, answer)

    def vote(self, answer: str) -> str | None:
        """The box without spaces: forms of one value that differ otherwise vote apart."""
        content = last_boxed(answer)
        return None if content is None else "".join(content.split())

    def close(self) -> None:
        """Ends the verifier."""
        self._environment.close()
