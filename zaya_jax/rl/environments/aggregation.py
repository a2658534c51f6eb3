"""Aggregation prompts: several candidate solutions in, one better solution out.

A round of test-time compute by Markovian RSA (arXiv 2605.05365; RSA, arXiv 2509.26626) or PaCoRe
(arXiv 2601.05593) is trained as an ordinary problem: its prompt holds candidates that an expert or
the model itself wrote before, its answer is verified like the problem's own.

    Markovian RSA   the last `tail` tokens of each candidate's thinking, C drawn without replacement
    PaCoRe          each candidate's answer section, all of them, in random order

No verifier's verdict reaches the prompt. Tails are cut as token ids and decoded once.
"""

from __future__ import annotations

import dataclasses
import enum
import json
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
)
from zaya_jax.rl.errors import RLError


class CandidateView(enum.StrEnum):
    """Which part of an earlier response the model gets to see."""

    TAIL = "tail"  # the end of the thinking: Markovian RSA
    ANSWER = "answer"  # what follows the thinking; unfinished candidates are left out: PaCoRe


@dataclasses.dataclass(frozen=True)
class AggregationConfig:
    """How candidates are chosen and shown.

    Raises:
      RLError: on construction, for a number below 1.
    """

    view: CandidateView = CandidateView.TAIL
    candidates: int = 4  # C; PaCoRe shows all there are
    tail_tokens: int = 4_096  # tau

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
        """The inner name with the view."""
        return f"{self._inner.name}+{self._config.view}"

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
            raise BrokenEnvironmentError(f"{self.name}: no finished candidate for {inner_seed}")
        problem = self._inner.sample(difficulty, inner_seed)
        prompt = prompt_text(aggregation_prompt(problem.prompt, [Piece(text) for text in shown]))
        reference = {"inner": dataclasses.asdict(problem)}
        return Problem(self.name, difficulty, seed, prompt, reference)

    def score(self, problem: Problem, answer: str) -> Score:
        """The inner environment's score."""
        return self._inner.score(Problem(**problem.reference["inner"]), answer)

    def _shown(self, responses: Sequence[str], draw: random.Random) -> list[str]:
        if self._config.view is CandidateView.ANSWER:
            answers = [text.rpartition(THINK_END)[2].strip() for text in responses]
            finished = [a for a, text in zip(answers, responses, strict=True) if _ended(text) and a]
            return draw.sample(finished, len(finished))
        chosen = draw.sample(list(responses), min(self._config.candidates, len(responses)))
        thoughts = [text.partition(THINK_END)[0].rpartition(THINK_START)[2] for text in chosen]
        return [
            self._decode(self._encode(thought)[-self._config.tail_tokens :]) for thought in thoughts
        ]


def _ended(response: str) -> bool:
    return THINK_END in response or THINK_START not in response


def candidates_from_jsonl(path: str) -> dict[tuple[int, int], list[str]]:
    """Earlier responses from rows `{"difficulty": 0, "seed": 7, "responses": ["…", …]}`.

    Raises:
      RLError: for a row that is not so, by file and line.
      OSError: when the file cannot be read.
    """
    found: dict[tuple[int, int], list[str]] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                key, responses = (int(row["difficulty"]), int(row["seed"])), row["responses"]
            except (ValueError, TypeError, KeyError) as error:
                raise RLError(
                    f"{path}:{number}: needs difficulty, seed and responses ({error!r})"
                ) from error
            if not responses or not all(isinstance(text, str) for text in responses):
                raise RLError(f"{path}:{number}: responses must be a list of texts, not empty")
            found.setdefault(key, []).extend(responses)
    return found
