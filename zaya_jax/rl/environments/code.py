"""Programming problems judged by tests: stdin in, stdout out.

Every test runs in a sandbox of its own. Expected outputs never enter it: a program that looks for
them finds nothing, and what it prints is compared outside, word by word. Right means all tests.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.environments.record_files import by_level, draw_record
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

    Attributes:
      statement: what a program must do.
      tests: that tell right programs from wrong ones.
      accepted: programs that are right.
      rejected: programs that fail for some input.
      validator: exits with status 0 exactly for inputs that the statement allows.
      level: how hard; 0 is the easiest.

    Raises:
      RLError: on construction, without tests.
    """

    statement: str
    tests: tuple[CodeTest, ...]
    accepted: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    validator: str = ""  # none
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
        self._levels = by_level(name, records)

    @property
    def hardest(self) -> int:
        """Highest level of the records."""
        return len(self._levels) - 1

    def sample(self, difficulty: int, seed: int) -> Problem:
        """A record of the level, drawn by the seed."""
        index = draw_record(self._levels, difficulty, seed)
        prompt = f"{self._records[index].statement.rstrip()}\n\n{CODE_INSTRUCTION}"
        return Problem(self.name, difficulty, seed, prompt, {"record": index})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 when the last block of code passes all tests."""
        program = last_code_block(answer)
        if program is None:
            return Score(0.0, "no block of code")
        return run_tests(self._sandbox, program, self._records[problem.reference["record"]].tests)


def run_tests(sandbox: Sandbox, program: str, tests: Sequence[CodeTest]) -> Score:
    """1 when a program passes all tests; stops at the first that fails."""
    for number, test in enumerate(tests, start=1):
        outcome = sandbox.run(program, test.stdin.encode())
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
