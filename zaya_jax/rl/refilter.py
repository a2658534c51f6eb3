"""Which problems are worth a stage: those the policy it begins with solves now and then.

    problems -> answers without thinking: drop what is solved anyway
             -> answers with thinking, at a lower length limit: drop what is always or never solved

Every answered problem is a row of the pass' file, so that an interrupted pass goes on. Source:
arXiv 2605.05365, which filters the data of its stages so in between; bounds and numbers of samples
are not published, those here are ours.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.rl.environments.protocol import (
    BrokenEnvironmentError,
    Environment,
    Problem,
    sample_problem,
    score_response,
)
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.prompts import PromptCodec, PromptStyle
from zaya_jax.rl.sampler import Sampler

SOLVED_ABOVE = 0.5  # reward of a response that counts as solved


@dataclasses.dataclass(frozen=True)
class FilterPass:
    """One look at all problems that are left.

    Raises:
      RLError: on construction, for numbers that keep nothing.
    """

    prompt: PromptStyle  # how the policy is asked
    most_tokens: int  # longest response
    samples: int = 8  # responses to each problem
    least_solved: float = 0.0  # share of them; problems below are dropped
    most_solved: float = 1.0  # problems above are dropped

    def __post_init__(self) -> None:
        if self.samples < 1 or self.most_tokens < 1:
            raise RLError(
                f"filter: samples={self.samples}, most_tokens={self.most_tokens}: must be at "
                "least 1"
            )
        if not 0 <= self.least_solved <= self.most_solved <= 1:
            raise RLError(
                f"filter: least_solved={self.least_solved}, most_solved={self.most_solved}: must "
                "rise within 0 to 1"
            )

    def keeps(self, solved: int) -> bool:
        """Whether a problem that was solved so often is kept."""
        return self.least_solved <= solved / self.samples <= self.most_solved


DEFAULT_PASSES = (
    FilterPass(PromptStyle.DIRECT, 2_048, most_solved=0.9),
    FilterPass(PromptStyle.THINKING, 32_768, least_solved=0.1, most_solved=0.9),
)


@dataclasses.dataclass(frozen=True)
class RefilterPlan:
    """What is looked at before a stage.

    Raises:
      RLError: on construction, without problems or passes.
    """

    problems: int  # of each environment and difficulty; those that occur twice count once
    difficulties: int = 1  # lowest ones of each environment that are looked at
    passes: tuple[FilterPass, ...] = DEFAULT_PASSES
    batch: int = 64  # problems answered at a time

    def __post_init__(self) -> None:
        for name in ("problems", "difficulties", "batch"):
            if getattr(self, name) < 1:
                raise RLError(f"filter: {name}={getattr(self, name)}: must be at least 1")
        if not self.passes:
            raise RLError("filter: no passes: nothing would be filtered")


Key = tuple[str, int, int]  # source, difficulty and seed of a problem


def candidates(plan: RefilterPlan, environments: Iterable[Environment]) -> list[Problem]:
    """Different problems of all environments; those that cannot be made are left out."""
    found: dict[tuple[str, str], Problem] = {}
    for environment in environments:
        top = plan.difficulties - 1
        top = top if environment.hardest is None else min(top, environment.hardest)
        for difficulty in range(top + 1):
            for seed in range(plan.problems):
                try:
                    problem = sample_problem(environment, difficulty, seed)
                except BrokenEnvironmentError:
                    continue
                found.setdefault((problem.source, problem.prompt), problem)
    return list(found.values())


def run_pass(
    rule: FilterPass,
    problems: Sequence[Problem],
    environments: Mapping[str, Environment],
    sampler: Sampler,
    codec: PromptCodec,
    path: Path,
    *,
    batch: int,
    seed: int,
    say: Callable[[str], Any] = lambda line: None,
) -> list[Problem]:
    """Asks all problems; returns those that are kept.

    Args:
      rule: of the pass.
      problems: that are left.
      environments: by name.
      sampler: with the policy's weights, for responses as long as the pass allows.
      codec: of the pass' style.
      path: rows of problems answered so far; is gone on with.
      batch: problems answered at a time.
      seed: of the samples.
      say: is told how far it is.

    Raises:
      RLError: for a damaged file.
    """
    solved = _answered(path)
    open_ones = [(i, one) for i, one in enumerate(problems) if _key(one) not in solved]
    for start in range(0, len(open_ones), batch):
        part = open_ones[start : start + batch]
        prompts = [codec.encode(one.prompt) for _, one in part for _ in range(rule.samples)]
        seeds = [
            int(number)
            for i, _ in part
            for number in np.random.default_rng([seed, i]).integers(2**62, size=rule.samples)
        ]
        responses = sampler.sample(prompts, seeds)
        rows = []
        for j, (_, one) in enumerate(part):
            own = responses[j * rule.samples : (j + 1) * rule.samples]
            texts = [codec.decode(response.tokens.tolist()) for response in own]
            count = _count_solved(environments[one.source], one, texts, rule.prompt)
            solved[_key(one)] = count
            rows.append({**_named(one), "solved": count, "samples": rule.samples})
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        say(f"{path.stem}: {len(solved)} of {len(problems)} problems answered")
    counts = [(one, solved[_key(one)]) for one in problems]
    return [one for one, count in counts if count is not None and rule.keeps(count)]


def write_kept(path: Path, problems: Iterable[Problem]) -> None:
    """Writes what all passes kept, whole or not at all."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text("".join(json.dumps(_named(one)) + "\n" for one in problems))
    temporary.replace(path)


def read_kept(path: Path) -> list[Key]:
    """Source, difficulty and seed of the problems in the file.

    Raises:
      RLError: when it is damaged.
    """
    return [_row_key(row) for row in _rows(path)]


def _count_solved(
    environment: Environment, problem: Problem, texts: Sequence[str], style: PromptStyle
) -> int | None:
    """Responses that solve it; None when the verifier failed."""
    thinks = style is PromptStyle.THINKING
    scores = [score_response(environment, problem, text, has_thinking=thinks) for text in texts]
    if any(score.broken for score in scores):
        return None
    return sum(score.reward > SOLVED_ABOVE for score in scores)


def _answered(path: Path) -> dict[Key, int | None]:
    if not path.exists():
        return {}
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]  # a killed run may leave half a line
    if whole != text:
        path.write_bytes(whole)
    return {_row_key(row): row["solved"] for row in _rows(path)}


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise RLError(f"{path} is damaged ({error}); remove it") from error


def _row_key(row: Mapping[str, Any]) -> Key:
    return row["source"], row["difficulty"], row["seed"]


def _key(problem: Problem) -> Key:
    return problem.source, problem.difficulty, problem.seed


def _named(problem: Problem) -> dict[str, Any]:
    return dict(zip(("source", "difficulty", "seed"), _key(problem), strict=True))
