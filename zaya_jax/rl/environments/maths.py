"""Competition maths: problems with a reference answer, compared by math-verify.

The response must put its answer into \\boxed{...}; the last one counts. Both sides are parsed to
sympy expressions and compared symbolically and numerically, in the sandbox, since parsing evaluates
what the model wrote. Levels are those of the records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from zaya_jax.data.boxed_answer import ask_boxed
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Problem, Score
from zaya_jax.rl.environments.record_files import by_level, draw_record
from zaya_jax.rl.environments.verifier import library_server
from zaya_jax.rl.sandbox_server import CallError, SandboxServer, ServerError

SERVER_SOURCE = """
from math_verify import LatexExtractionConfig, parse, verify

def handle(request):
    # The server limits time; the library's own limit needs signals.
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    gold, given = (
        parse("\\\\boxed{" + request[side] + "}", extraction_config=config, parsing_timeout=None)
        for side in ("gold", "given")
    )
    right = bool(gold) and bool(given) and verify(gold, given, timeout_seconds=None)
    return {"parsed": bool(gold), "right": bool(right)}
"""
MOST_ANSWER_CHARACTERS = 1_000


@dataclasses.dataclass(frozen=True)
class MathsRecord:
    """A problem and its answer in LaTeX, without the box."""

    statement: str
    answer: str
    level: int = 0  # 0 is the easiest


class MathsEnvironment:
    """Samples from given records."""

    def __init__(
        self,
        records: Sequence[MathsRecord],
        *,
        name: str = "maths",
        seconds: float = 10.0,
        unsafe: bool = False,
    ) -> None:
        """Takes the records; the verifier starts when it is first needed.

        Raises:
          RLError: without records, for a gap in the levels, or when math-verify or bubblewrap is
            missing.
        """
        self.name, self._records, self._seconds = name, list(records), seconds
        self._levels = by_level(name, records)
        self._server: SandboxServer = library_server("math_verify", SERVER_SOURCE, unsafe=unsafe)

    @property
    def hardest(self) -> int:
        """Highest level of the records."""
        return len(self._levels) - 1

    def sample(self, difficulty: int, seed: int) -> Problem:
        """A record of the level, drawn by the seed."""
        record = self._records[draw_record(self._levels, difficulty, seed)]
        prompt = ask_boxed(record.statement)
        return Problem(self.name, difficulty, seed, prompt, {"answer": record.answer})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 when the last box equals the reference."""
        content = last_boxed(answer)
        if content is None:
            return Score(0.0, "no complete box")
        if len(content) > MOST_ANSWER_CHARACTERS:
            return Score(0.0, f"an answer of {len(content)} characters")
        request = {"gold": problem.reference["answer"], "given": content}
        try:
            result = self._server.call(request, seconds=self._seconds)
        except CallError as error:
            return Score(0.0, f"the answer cannot be compared: {error}")
        except ServerError as error:
            raise BrokenEnvironmentError(f"{self.name}: {error}") from error
        if not result["parsed"]:
            raise BrokenEnvironmentError(
                f"{self.name}: the reference {problem.reference['answer']!r} cannot be parsed"
            )
        return Score(float(result["right"]), "right" if result["right"] else "wrong")

    def close(self) -> None:
        """Ends the verifier."""
        self._server.close()


def last_boxed(text: str) -> str | None:
    """Content of the last \\boxed{...} whose braces balance; None without one.

    A box that opens last but never closes was cut off, so that no earlier one counts either.
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, first = 0, start + len("\\boxed")
    for i in range(first, len(text)):
        if text[i] in "{}" and (i == 0 or text[i - 1] != "\\"):
            depth += 1 if text[i] == "{" else -1
            if depth == 0:
                return text[first + 1 : i].strip()
    return None
