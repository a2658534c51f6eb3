"""Aggregation prompts: several candidate solutions in, one better solution out.

A round of test-time compute by Markovian RSA (arXiv 2605.05365; RSA, arXiv 2509.26626) or PaCoRe
(arXiv 2601.05593) is trained as an ordinary problem: its prompt holds candidates that an expert or
the model itself wrote before, its answer is verified like the problem's own.

    Markovian RSA   the last `tail` tokens of each candidate's thinking, C drawn without replacement
    PaCoRe          each candidate's answer section, all of them, in random order; of a candidate
                    that gave no answer, the tail of its thinking

Candidates of an expert and of the model itself go into two environments, told apart by `origin`.
No verifier's verdict reaches the prompt. Tails are cut as token ids and decoded once.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Callable, Mapping, Sequence

from zaya_jax.data.aggregation_prompt import Piece, aggregation_prompt, prompt_text
from zaya_jax.rl.environments.protocol import (
    THINK_END,
    THINK_START,
    BrokenEnvironmentError,
    Environment,
    Problem,
    Score,
    strip_thinking,
)
from zaya_jax.rl.environments.record_files import from_jsonl
from zaya_jax.rl.errors import RLError


class CandidateView(enum.StrEnum):
    """Which part of an earlier response the model gets to see."""

    TAIL = "tail"  # the end of the thinking: Markovian RSA
    ANSWER = "answer"  # what follows the thinking, or else the end of it: PaCoRe


@dataclasses.dataclass(frozen=True)
class AggregationConfig:
    """How candidates are chosen and shown.

    Raises:
      RLError: on construction, for a number below 1.
    """

    view: CandidateView = CandidateView.TAIL
    candidates: int = 4  # C; PaCoRe shows all there are
    tail_tokens: int = 4_096  # tau
    origin: str = ""  # who wrote the candidates: "expert", "self"; becomes part of the name

    def __post_init__(self) -> None:
        if self.candidates < 1 or self.tail_tokens < 1:
            raise RLError(
                f"aggregation: candidates={self.candidates}, tail_tokens={self.tail_tokens}: "
                "must be at least 1"
            )


class AggregationEnvironment:
    """Another environment's problems, asked again beside earlier candidates."""

    def __init__(
        self,
        inner: Environment,
        candidates: Mapping[tuple[int, int], Sequence[str]],
        config: AggregationConfig,
        *,
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
    ) -> None:
        """Takes earlier responses by (difficulty, seed) of the inner problem.

        Args:
          inner: makes and scores the problems.
          candidates: whole responses, thinking included.
          config: what is shown of them.
          encode: text to token ids.
          decode: and back.

        Raises:
          RLError: without candidates.
        """
        if not candidates:
            raise RLError(f"{inner.name}: aggregation needs earlier responses, got none")
        self._inner, self._candidates, self._config = inner, dict(candidates), config
        self._encode, self._decode = encode, decode

    @property
    def name(self) -> str:
        """The inner name with the view, and with the origin if it has one."""
        origin = f"/{self._config.origin}" if self._config.origin else ""
        return f"{self._inner.name}+{self._config.view}{origin}"

    @property
    def hardest(self) -> int:
        """Highest difficulty with candidates."""
        return max(difficulty for difficulty, _ in self._candidates)

    def sample(self, difficulty: int, seed: int) -> Problem:
        """An inner problem that has candidates, drawn by the seed, with a draw of them."""
        draw = random.Random(seed)
        seeds = sorted(s for d, s in self._candidates if d == difficulty)
        if not seeds:
            raise BrokenEnvironmentError(f"{self.name}: no candidates at difficulty {difficulty}")
        inner_seed = draw.choice(seeds)
        shown = self._shown(self._candidates[difficulty, inner_seed], draw)
        if not shown:
            raise BrokenEnvironmentError(
                f"{self.name}: no candidate for {inner_seed} says anything"
            )
        problem = self._inner.sample(difficulty, inner_seed)
        prompt = prompt_text(aggregation_prompt(problem.prompt, [Piece(text) for text in shown]))
        reference = {"inner": dataclasses.asdict(problem)}
        return Problem(self.name, difficulty, seed, prompt, reference)

    def score(self, problem: Problem, answer: str) -> Score:
        """The inner environment's score."""
        return self._inner.score(Problem(**problem.reference["inner"]), answer)

    def _shown(self, responses: Sequence[str], draw: random.Random) -> list[str]:
        if self._config.view is CandidateView.ANSWER:
            parts = [answer_of(text) or self._tail(text) for text in responses]
            return [part for part in draw.sample(parts, len(parts)) if part]
        chosen = draw.sample(list(responses), min(self._config.candidates, len(responses)))
        return [self._tail(text) for text in chosen]

    def _tail(self, response: str) -> str:
        """The end of the thinking."""
        thought = response.partition(THINK_END)[0].rpartition(THINK_START)[2]
        return self._decode(self._encode(thought)[-self._config.tail_tokens :])


def answer_of(response: str) -> str:
    """What follows the last end of thinking, or everything without any; else nothing."""
    return (strip_thinking(response) or "").strip()


@dataclasses.dataclass(frozen=True)
class CandidateRow:
    """Earlier responses to one problem.

    Raises:
      RLError: on construction, without responses.
    """

    difficulty: int
    seed: int
    responses: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.responses:
            raise RLError("field 'responses' is empty")


def candidates_from_jsonl(path: str) -> dict[tuple[int, int], list[str]]:
    """Earlier responses from rows `{"difficulty": 0, "seed": 7, "responses": ["…", …]}`.

    Raises:
      RLError: for a file that cannot be read, or a row that is not so, by file, line and field.
    """
    found: dict[tuple[int, int], list[str]] = {}
    for row in from_jsonl(path, CandidateRow):
        found.setdefault((row.difficulty, row.seed), []).extend(row.responses)
    return found
