"""Problems of chat data that have one right answer, compared to the letter.

The same sources that a policy was taught from (`docs/data.md`) become its environment: the user's
turn is the problem, the assistant's answer without its reasoning is what the policy must say. The
held-out part is the one that training leaves out, by the same hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from zaya_jax.data.config import DataConfig
from zaya_jax.data.conversation import Conversation
from zaya_jax.data.samples import read_samples
from zaya_jax.data.sources import split
from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.environments.record_files import draw_record
from zaya_jax.rl.errors import RLError


class SourceProblems:
    """One source for each difficulty."""

    def __init__(
        self,
        name: str,
        sources: Sequence[str],
        *,
        held_out: bool = False,
        validation_fraction: float = 0.02,
    ) -> None:
        """Reads all sources.

        Args:
          name: of the environment.
          sources: of difficulty 0, 1, 2, …
          held_out: whether to ask what training leaves out, or the rest.
          validation_fraction: share that training leaves out.

        Raises:
          RLError: without sources, or for a conversation that is not one question and one answer.
          DataError: for a source that cannot be read.
        """
        if not sources:
            raise RLError(f"{name}: needs at least 1 source")
        self.name = name
        self._problems: list[tuple[str, str]] = []
        self._levels: list[list[int]] = []
        for source in sources:
            config = DataConfig(source=source, max_bytes=None)
            learnt, left_out = split(read_samples(source, config).samples, validation_fraction)
            chosen = [
                _question_and_answer(name, sample.place, sample.content)
                for sample in (left_out if held_out else learnt)
            ]
            start = len(self._problems)
            self._problems += chosen
            self._levels.append(list(range(start, start + len(chosen))))

    @property
    def hardest(self) -> int:
        """The last source."""
        return len(self._levels) - 1

    def sample(self, difficulty: int, seed: int) -> Problem:
        """A problem of that source, drawn by the seed."""
        question, answer = self._problems[draw_record(self._levels, difficulty, seed)]
        return Problem(self.name, difficulty, seed, question, {"answer": answer})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 for the right answer to the letter, surrounding space aside."""
        expected = problem.reference["answer"]
        return Score(float(answer.strip() == expected), f"expected {expected}")


def _question_and_answer(name: str, place: str, content: object) -> tuple[str, str]:
    messages = content.messages if isinstance(content, Conversation) else ()
    if [message.role for message in messages] != ["user", "assistant"]:
        raise RLError(f"{name}: {place} is not one question and one answer")
    return messages[0].content, messages[1].content.strip()
