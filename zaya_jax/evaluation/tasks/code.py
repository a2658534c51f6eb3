"""Programming problems judged by tests in the sandbox: stdin in, stdout out.

    {"statement": "Print twice the number.", "tests": [{"stdin": "3", "stdout": "6"}]}

Right means all tests. Output is compared word by word, outside the sandbox.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zaya_jax.evaluation.items import Item, any_text, listed, read_fields, record, text
from zaya_jax.rl.environments.code import (
    CODE_INSTRUCTION,
    CodeEnvironment,
    CodeRecord,
    CodeTest,
)
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Problem, Score
from zaya_jax.rl.sandbox import Sandbox, SandboxError
from zaya_jax.rl.sandbox_command import Limits


def _tests(name: str, value: Any) -> list[dict[str, str]]:
    fields = {"stdin": any_text, "stdout": any_text}
    return listed(name, value, lambda n, v: record(n, v, fields))


FIELDS = {"statement": text, "tests": _tests}


class Code:
    """See the module."""

    def __init__(self, path: Path, *, limits: Limits | None = None, unsafe: bool = False) -> None:
        """Reads the file.

        Args:
          path: of the problems.
          limits: of every run of a program.
          unsafe: see `zaya_jax.rl.sandbox.Sandbox`.
        """
        rows = list(read_fields(path, FIELDS))
        self.items = [
            Item(own, f"{row['statement'].rstrip()}\n\n{CODE_INSTRUCTION}", (number, row["tests"]))
            for number, (_, own, row) in enumerate(rows)
        ]
        records = [
            CodeRecord(row["statement"], tuple(CodeTest(**test) for test in row["tests"]))
            for _, _, row in rows
        ]
        self._environment = CodeEnvironment(records, Sandbox(limits, unsafe=unsafe), name=path.stem)

    def grade(self, item: Item, answer: str) -> Score:
        """1 when the last block of code passes all tests."""
        reference = {"record": item.reference[0]}
        try:
            return self._environment.score(Problem(item.id, 0, 0, item.prompt, reference), answer)
        except SandboxError as error:
            raise BrokenEnvironmentError(str(error)) from error

    def vote(self, answer: str) -> str | None:
        """Programs are not voted on."""
        return None

    def close(self) -> None:
        """Nothing keeps running."""
