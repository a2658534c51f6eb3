"""What does this program print for this input?"""

from __future__ import annotations

from collections.abc import Sequence

from zaya_jax.rl.environments.code import CodeRecord
from zaya_jax.rl.environments.code_auxiliary.task import CodeTask, block
from zaya_jax.rl.environments.protocol import Problem, Score, last_tagged
from zaya_jax.rl.sandbox import Sandbox


class OutputPrediction(CodeTask):
    """The expected output is what the program printed when the problem was made."""

    def __init__(
        self, records: Sequence[CodeRecord], sandbox: Sandbox, *, name: str = "code_output"
    ) -> None:
        """Uses records with accepted programs; see `CodeTask`."""
        super().__init__(records, sandbox, name=name, usable=lambda r: bool(r.accepted))

    def sample(self, difficulty: int, seed: int) -> Problem:
        """An accepted program and one of its inputs, drawn by the seed."""
        index, draw = self.draw(difficulty, seed)
        program = draw.choice(self.records[index].accepted)
        stdin, printed = self.draw_run(index, program, draw)
        prompt = (
            f"What does this Python program print?\n\n{block(program, 'python')}\n\n"
            f"Its standard input:\n\n{block(stdin)}\n\n"
            "Give all that it prints between <answer> and </answer>."
        )
        return Problem(self.name, difficulty, seed, prompt, {"printed": printed})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 for the same words in the same order."""
        content = last_tagged(answer)
        if content is None:
            return Score(0.0, "no answer tags")
        right = content.split() == problem.reference["printed"].split()
        return Score(float(right), "right" if right else "another output")
