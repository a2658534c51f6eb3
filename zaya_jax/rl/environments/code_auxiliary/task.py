"""What the tasks on code records share: choosing a record, running its programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from zaya_jax.rl.environments.code import CodeRecord
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, last_tagged
from zaya_jax.rl.environments.record_files import by_level, draw_record
from zaya_jax.rl.sandbox import Outcome, Sandbox, SandboxError, Verdict

MOST_INPUT_CHARACTERS = 65_536  # of an input that a model proposes
MOST_SHOWN_CHARACTERS = 2_000  # of an input or output in a prompt


class CodeTask:
    """Base of the tasks: the usable ones of the records, and the sandbox."""

    def __init__(
        self,
        records: Sequence[CodeRecord],
        sandbox: Sandbox,
        *,
        name: str,
        usable: Callable[[CodeRecord], bool],
    ) -> None:
        """Takes the records that have what the task needs.

        Raises:
          RLError: when none has, or their levels have a gap.
        """
        self.name, self.sandbox = name, sandbox
        self.records = [record for record in records if usable(record)]
        self._levels = by_level(f"{name} ({len(self.records)} usable records)", self.records)

    @property
    def hardest(self) -> int:
        """Highest level of the usable records."""
        return len(self._levels) - 1

    def draw(self, difficulty: int, seed: int) -> tuple[int, random.Random]:
        """A record's index, and what else is to be drawn for the problem."""
        return draw_record(self._levels, difficulty, seed), random.Random(f"{self.name} {seed}")

    def draw_run(
        self, index: int, program: str, draw: random.Random, *, most: int = MOST_SHOWN_CHARACTERS
    ) -> tuple[str, str]:
        """Input and output of a run, on one of the record's tests, that are short enough to show.

        Raises:
          BrokenEnvironmentError: when no test gives one.
        """
        tests = self.records[index].tests
        for test in draw.sample(tests, len(tests)):
            if len(test.stdin) > most:
                continue
            outcome = self.run(program, test.stdin)
            printed = text_of(outcome)
            if outcome.verdict is Verdict.OK and printed.split() and len(printed) <= most:
                return test.stdin, printed
        raise BrokenEnvironmentError(f"{self.name}: no test of record {index} has a run to show")

    def run(self, program: str, stdin: str) -> Outcome:
        """Runs a program.

        Raises:
          BrokenEnvironmentError: when there is no sandbox.
        """
        try:
            return self.sandbox.run(program, stdin.encode())
        except SandboxError as error:
            raise BrokenEnvironmentError(f"{self.name}: {error}") from error


def text_of(outcome: Outcome) -> str:
    """What a program printed."""
    return outcome.stdout.decode("utf-8", errors="replace")


def proposed_input(answer: str) -> str | None:
    """Content of the last answer tags as standard input; None without one or when too long."""
    content = last_tagged(answer)
    if content is None or len(content) > MOST_INPUT_CHARACTERS:
        return None
    return content + "\n"


def block(text: str, language: str = "") -> str:
    """A fenced block."""
    return f"```{language}\n{text.rstrip()}\n```"
