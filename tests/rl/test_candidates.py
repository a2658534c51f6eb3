"""A policy's responses become candidates that aggregation prompts show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zaya_jax.rl.candidates import gather_candidates, write_candidates
from zaya_jax.rl.environments.aggregation import (
    AggregationConfig,
    AggregationEnvironment,
    CandidateRow,
    candidates_from_jsonl,
)
from zaya_jax.rl.environments.practice import PracticeEnvironment
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Problem
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sampler import Sampled


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


class Parrot:
    """Thinks of its seed and repeats the question."""

    version = 0

    def load_weights(self, variables: dict[str, Any]) -> int:
        return 0

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Sampled]:
        texts = [
            f"<think>thought {s}</think>{decode(p)}" for p, s in zip(prompts, seeds, strict=True)
        ]
        empty = np.zeros(0, np.int32)
        return [Sampled(np.array(encode(t)), empty, empty, empty, False) for t in texts]


class Rare(PracticeEnvironment):
    def sample(self, difficulty: int, seed: int) -> Problem:
        if seed == 1:
            raise BrokenEnvironmentError("none")
        return super().sample(difficulty, seed)


def test_responses_of_the_policy_are_shown_beside_the_same_problem(tmp_path: Path) -> None:
    inner = Rare("reverse")
    rows = gather_candidates(
        inner, Parrot(), [(0, 1), (0, 2), (1, 3)], 4, encode=encode, decode=decode
    )
    assert [(row.difficulty, row.seed, len(set(row.responses))) for row in rows] == [
        (0, 2, 4),
        (1, 3, 4),
    ]
    write_candidates(tmp_path / "own.jsonl", rows)
    assert [path.name for path in tmp_path.iterdir()] == ["own.jsonl"]
    environment = AggregationEnvironment(
        inner,
        candidates_from_jsonl(str(tmp_path / "own.jsonl")),
        AggregationConfig(origin="self"),
        encode=encode,
        decode=decode,
    )
    problem = environment.sample(1, 0)
    assert inner.sample(1, 3).prompt in problem.prompt
    assert problem.prompt.count("thought 1") == 4  # seeds 12 to 15


def test_what_cannot_be_gathered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RLError, match="count=0"):
        gather_candidates(Rare("sort"), Parrot(), [], 0, encode=encode, decode=decode)
    with pytest.raises(RLError, match="made none of the problems"):
        gather_candidates(Rare("sort"), Parrot(), [(0, 1)], 2, encode=encode, decode=decode)

    def broken() -> Any:
        yield CandidateRow(0, 1, ("a",))
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        write_candidates(tmp_path / "own.jsonl", broken())
    assert list(tmp_path.iterdir()) == []
