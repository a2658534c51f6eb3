"""A policy's own responses as candidates for aggregation prompts.

The policy of the stage before answers problems of an environment; its responses go into a file that
`zaya_jax.rl.environments.aggregation` shows beside the same problems. An expert's go into a file of
the same form.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from zaya_jax.rl.environments.aggregation import CandidateRow
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Environment
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sampler import Sampler


def gather_candidates(
    environment: Environment,
    sampler: Sampler,
    problems: Iterable[tuple[int, int]],
    count: int,
    *,
    encode: Callable[[str], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
) -> list[CandidateRow]:
    """Responses to problems, as they are: nobody scores them.

    Args:
      environment: makes the problems.
      sampler: has the weights of the policy.
      problems: difficulty and seed of each; those that cannot be made are left out.
      count: responses to each.
      encode: a user's turn to the prompt's tokens.
      decode: response tokens to text.

    Raises:
      RLError: for a count below 1, or when no problem can be made.
    """
    if count < 1:
        raise RLError(f"candidates: count={count} must be at least 1")
    rows: list[CandidateRow] = []
    for difficulty, seed in problems:
        try:
            prompt = list(encode(environment.sample(difficulty, seed).prompt))
        except BrokenEnvironmentError:
            continue
        sampled = sampler.sample([prompt] * count, [seed * count + i for i in range(count)])
        texts = tuple(decode(one.tokens.tolist()) for one in sampled)
        rows.append(CandidateRow(difficulty, seed, texts))
    if not rows:
        raise RLError(f"candidates: {environment.name} made none of the problems")
    return rows


def write_candidates(path: str | Path, rows: Iterable[CandidateRow]) -> None:
    """Writes the file, whole or not at all."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n")
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
