"""Show that a candidate program is wrong: find an allowed input that it gets wrong.

An input is allowed when the record's validator, if it has one, accepts it, and all accepted
programs end well on it and print the same. Without a validator and with a single accepted program
inputs that the statement forbids can pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from zaya_jax.rl.environments.code import CodeRecord, passes
from zaya_jax.rl.environments.code_auxiliary.task import (
    CodeTask,
    block,
    proposed_input,
    text_of,
)
from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.sandbox import Sandbox, Verdict


class Falsification(CodeTask):
    """Crashing, or not ending in time, is wrong too."""

    def __init__(
        self, records: Sequence[CodeRecord], sandbox: Sandbox, *, name: str = "code_falsification"
    ) -> None:
        """Uses records with accepted and rejected programs; see `CodeTask`."""
        super().__init__(
            records, sandbox, name=name, usable=lambda r: bool(r.accepted and r.rejected)
        )

    def sample(self, difficulty: int, seed: int) -> Problem:
        """A statement and a rejected program, drawn by the seed."""
        index, draw = self.draw(difficulty, seed)
        record = self.records[index]
        candidate = draw.choice(record.rejected)
        prompt = (
            f"{record.statement.rstrip()}\n\nThis Python program is meant to solve the problem "
            f"above, but is wrong for some input:\n\n{block(candidate, 'python')}\n\n"
            "Find an input that the problem allows and that shows it. "
            "Give the whole input between <answer> and </answer>."
        )
        reference = {"record": index, "candidate": candidate}
        return Problem(self.name, difficulty, seed, prompt, reference)

    def score(self, problem: Problem, answer: str) -> Score:
        """1 when the input is allowed and the candidate does not print what accepted ones print."""
        stdin = proposed_input(answer)
        if stdin is None:
            return Score(0.0, "no answer tags, or too long an input")
        record = self.records[problem.reference["record"]]
        if record.validator and self.run(record.validator, stdin).verdict is not Verdict.OK:
            return Score(0.0, "the validator refuses the input")
        trusted = self.run(record.accepted[0], stdin)
        expected = text_of(trusted)
        if trusted.verdict is not Verdict.OK:
            return Score(0.0, f"an accepted program on the input: {trusted.verdict.value}")
        for program in record.accepted[1:]:
            if not passes(self.run(program, stdin), expected):
                return Score(0.0, "accepted programs disagree on the input")
        found = self.run(problem.reference["candidate"], stdin)
        if passes(found, expected):
            return Score(0.0, "the candidate is right on the input")
        why = "prints something else" if found.verdict is Verdict.OK else found.verdict.value
        return Score(1.0, f"the candidate: {why}")
