"""Write the program that the statement and some examples describe; other tests judge it."""

from __future__ import annotations

from collections.abc import Sequence

from zaya_jax.rl.environments.code import (
    CODE_INSTRUCTION,
    CodeRecord,
    last_code_block,
    run_tests,
)
from zaya_jax.rl.environments.code_auxiliary.task import (
    MOST_SHOWN_CHARACTERS,
    CodeTask,
    block,
)
from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.sandbox import Sandbox


class Reconstruction(CodeTask):
    """Tests that were shown as examples do not count, so that printing them gains nothing."""

    def __init__(
        self,
        records: Sequence[CodeRecord],
        sandbox: Sandbox,
        *,
        examples: int = 2,
        name: str = "code_reconstruction",
    ) -> None:
        """Uses records with two tests or more; at most all but one are examples; see `CodeTask`."""
        self._examples = examples
        super().__init__(records, sandbox, name=name, usable=lambda r: len(r.tests) > 1)

    def sample(self, difficulty: int, seed: int) -> Problem:
        """A statement and examples, drawn by the seed; too long ones are not shown."""
        index, draw = self.draw(difficulty, seed)
        record = self.records[index]
        short = [
            i
            for i, test in enumerate(record.tests)
            if len(test.stdin) + len(test.stdout) <= MOST_SHOWN_CHARACTERS
        ]
        most = min(self._examples, len(short), len(record.tests) - 1)
        shown = sorted(draw.sample(short, most))
        parts = [record.statement.rstrip()]
        for number, test in enumerate((record.tests[i] for i in shown), start=1):
            parts += [f"Example {number}, input:\n\n{block(test.stdin)}"]
            parts += [f"and its output:\n\n{block(test.stdout)}"]
        prompt = "\n\n".join([*parts, CODE_INSTRUCTION])
        return Problem(self.name, difficulty, seed, prompt, {"record": index, "shown": shown})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 when the last block of code passes all tests that were not shown."""
        program = last_code_block(answer)
        if program is None:
            return Score(0.0, "no block of code")
        tests = self.records[problem.reference["record"]].tests
        shown = problem.reference["shown"]
        held_out = [test for i, test in enumerate(tests) if i not in shown]
        return run_tests(self.sandbox, program, held_out)
