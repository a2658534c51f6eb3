"""Find an input for which this program prints this output."""

from __future__ import annotations

from collections.abc import Sequence

from zaya_jax.rl.environments.code import CodeRecord, passes
from zaya_jax.rl.environments.code_auxiliary.task import CodeTask, block, proposed_input
from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.sandbox import Sandbox, Verdict


class InputPrediction(CodeTask):
    """Any input will do: the program runs on the one proposed."""

    def __init__(
        self, records: Sequence[CodeRecord], sandbox: Sandbox, *, name: str = "code_input"
    ) -> None:
        """Uses records with accepted programs; see `CodeTask`."""
        super().__init__(records, sandbox, name=name, usable=lambda r: bool(r.accepted))

    def sample(self, difficulty: int, seed: int) -> Problem:
        """An accepted program and one of its outputs, drawn by the seed."""
        index, draw = self.draw(difficulty, seed)
        program = draw.choice(self.records[index].accepted)
        _, printed = self.draw_run(index, program, draw)
        prompt = (
            "Find a standard input for which this Python program prints the output below.\n\n"
            f"{block(program, 'python')}\n\nThe output:\n\n{block(printed)}\n\n"
            "Give the whole input between <answer> and </answer>."
        )
        return Problem(self.name, difficulty, seed, prompt, {"program": program, "output": printed})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 when the program prints the output for the proposed input."""
        stdin = proposed_input(answer)
        if stdin is None:
            return Score(0.0, "no answer tags, or too long an input")
        outcome = self.run(problem.reference["program"], stdin)
        if outcome.verdict is not Verdict.OK:
            return Score(0.0, f"the program on the proposed input: {outcome.verdict.value}")
        right = passes(outcome, problem.reference["output"])
        return Score(float(right), "right" if right else "another output")
