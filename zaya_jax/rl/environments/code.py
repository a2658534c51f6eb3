"""Programming problems judged by tests: stdin in, stdout out.

Every test runs in a sandbox of its own. Expected outputs never enter it: a program that looks for
them finds nothing, and what it prints is compared outside, word by word. Right means all tests.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence

from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox import Outcome, Sandbox, Verdict

CODE_INSTRUCTION = (
    "Write a Python program that reads standard input and writes standard output. "
    "Put it into one block between ```python and ```."
)


@dataclasses.dataclass(frozen=True)
class CodeTest:
    """What goes in and what must come out."""

    stdin: str
    stdout: str


@dataclasses.dataclass(frozen=True)
class CodeRecord:
    """A problem with its tests and known programs.

    Raises:
      RLError: on construction, without tests.
    """

    statement: str
    tests: tuple[CodeTest, ...]
    accepted: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    level: int = 0

    def __post_init__(self) -> None:
        if not self.tests:
            raise RLError(f"problem {self.statement[:40]!r} has no tests: every program would pass")


class CodeEnvironment:
    """Writing a program for a statement."""

    def __init__(
        self, records: Sequence[CodeRecord], sandbox: Sandbox, *, name: str = "code"
    ) -> None:
        """Takes records whose levels count from 0 without gaps.

        Raises:
          RLError: without records or for a gap in the levels.
        """
        self.name, self._records, self._sandbox = name, list(records), sandbox
        levels = {record.level for record in records}
        if levels != set(range(len(levels))) or not levels:
            raise RLError(f"{name}: levels {sorted(levels)} of the records must be 0, 1, 2, …")
        self._hardest = max(levels)

    @property
    def hardest(self) -> int:
        """Highest level of the records."""
        return self._hardest

    def sample(self, difficulty: int, seed: int) -> Problem:
        """A record of the level, drawn by the seed."""
        level = min(difficulty, self._hardest)
        choices = [i for i, record in enumerate(self._records) if record.level == level]
        index = random.Random(seed).choice(choices)
        prompt = f"{self._records[index].statement.rstrip()}\n\n{CODE_INSTRUCTION}"
        return Problem(self.name, difficulty, seed, prompt, {"record": index})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 when the last block of code passes all tests; stops at the first that fails."""
        program = last_code_block(answer)
        if program is None:
            return Score(0.0, "no block of code")
        tests = self._records[problem.reference["record"]].tests
        for number, test in enumerate(tests, start=1):
            outcome = self._sandbox.run(program, test.stdin.encode())
            if not passes(outcome, test.stdout):
                why = "wrong output" if outcome.verdict is Verdict.OK else outcome.verdict.value
                return Score(0.0, f"test {number} of {len(tests)}: {why}")
        return Score(1.0, f"passed {len(tests)} tests")


def passes(outcome: Outcome, expected: str) -> bool:
    """Whether a program ended well and printed the expected words; spacing does not count."""
    words = outcome.stdout.decode("utf-8", errors="replace").split()
    return outcome.verdict is Verdict.OK and words == expected.split()


def last_code_block(text: str) -> str | None:
    """Content of the last complete fenced block that is Python or says no language."""
    blocks = re.findall(
        r"^```(?:python|py)?[ \t]*\n(.*?)^```[ \t]*$", text, re.DOTALL | re.MULTILINE
    )
    return blocks[-1] if blocks else None
