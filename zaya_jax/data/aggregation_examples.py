"""Examples that teach aggregation: the tails of several attempts in, one right solution out.

They are the cold start of Markovian RSA (arXiv 2605.05365). A record is a problem with solutions
that a teacher wrote, several to a problem:

    {"problem": "What is 6 * 7?",
     "candidates": [{"reasoning": "6 * 7 = 42", "answer": "42", "correct": true}, …]}

One right candidate is the target, whole. Of the others a subset is drawn without replacement, and
the last tokens of their reasoning go into the prompt that inference writes
(`zaya_jax/data/aggregation_prompt.py`). How many right ones are among them is drawn evenly between
the least and the most that there can be, so a model learns to decide, not to vote. Without
`correct` in a record nothing is known: target and subset are drawn from all.

The same as a source of a run, built while reading; a task instead of a file stands for generated
problems with right and wrong solutions (`zaya_jax/data/worked_traces.py`):

    aggregation:records.jsonl?subset=4&tail=4096
    aggregation:chain_sum?subset=3&tail=64&size=2000&seed=0
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zaya_jax.config import ConfigError
from zaya_jax.data.aggregation_prompt import Piece, aggregation_prompt, prompt_text
from zaya_jax.data.config import DataError
from zaya_jax.data.conversation import RowError
from zaya_jax.data.reasoning_problems import candidate_records, integer_options
from zaya_jax.data.row_files import BadRow, Row, read_rows, row_files_of
from zaya_jax.data.tokenizer import Tokenizer

_PREFIX = "aggregation:"
_CUT = "\N{REPLACEMENT CHARACTER}"


@dataclasses.dataclass(frozen=True)
class AggregationSettings:
    """How examples are drawn; the symbols are those of arXiv 2605.05365.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    subset: int = 4  # C: most attempts in a prompt
    least_subset: int = 0  # fewest, drawn evenly from there up to `subset`; 0: always `subset`
    tail: int = 4_096  # tau: tokens of an attempt's reasoning that are shown
    thinking_budget: int = 0  # beta: reasoning beyond it is cut before the tail; 0: none is
    pass_answers: int = 0  # 1: attempts within the budget show their answer, not their tail
    examples: int = 1  # made of each record
    candidates: int = 8  # solutions of each generated problem; files have their own
    seed: int = 0  # of all draws

    def __post_init__(self) -> None:
        for name in ("subset", "tail", "examples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"aggregation: {name}={getattr(self, name)}: must be at least 1")
        for name in ("least_subset", "thinking_budget", "pass_answers", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"aggregation: {name}={getattr(self, name)}: must be 0 or more")
        if self.candidates < 2:
            raise ConfigError(f"aggregation: candidates={self.candidates}: must be at least 2")
        if self.least_subset > self.subset:
            raise ConfigError(
                f"aggregation: least_subset={self.least_subset} is above subset={self.subset}"
            )


@dataclasses.dataclass(frozen=True)
class Solution:
    """One attempt. `correct` is None where nobody checked it."""

    reasoning: str
    answer: str
    correct: bool | None


@dataclasses.dataclass(frozen=True)
class Record:
    """A problem and the attempts at it."""

    problem: str
    candidates: tuple[Solution, ...]


def parse_record(fields: Mapping[str, Any]) -> Record:
    """Checks one record.

    Raises:
      RowError: for a missing field or one of the wrong kind, fewer than two candidates, or none
        that is right.
    """
    problem, candidates = _text_field(fields, "problem"), fields.get("candidates")
    if not problem.strip():
        raise RowError("'problem' is empty")
    if isinstance(candidates, str) or not isinstance(candidates, Sequence) or len(candidates) < 2:
        raise RowError("'candidates' is no list of two or more")
    solutions = tuple(_solution(index, one) for index, one in enumerate(candidates))
    if not _targets(solutions):
        raise RowError("no candidate is right: there is nothing to learn")
    return Record(problem, solutions)


def aggregation_rows(
    record: Record, settings: AggregationSettings, tokenizer: Tokenizer, *, target: bool = True
) -> Iterator[Mapping[str, Any]]:
    """The examples of one record as rows of chat data; the same wherever the record stands.

    Args:
      record: checked.
      settings: how to draw.
      tokenizer: counts the tokens of tails.
      target: whether the right solution follows the prompt; without, a teacher may answer it.
    """
    key = int(hashlib.sha256(record.problem.encode("utf-8")).hexdigest()[:16], 16)
    for number in range(settings.examples):
        rng = np.random.default_rng([settings.seed, key, number])
        targets = _targets(record.candidates)
        chosen = targets[rng.integers(len(targets))]
        others = [index for index in range(len(record.candidates)) if index != chosen]
        drawn = _draw(record, others, settings, rng)
        tails = [_shown(record.candidates[index], settings, tokenizer) for index in drawn]
        prompt = prompt_text(aggregation_prompt(record.problem, tails))
        messages = [{"role": "user", "content": prompt}]
        if target:
            best = record.candidates[chosen]
            messages.append(
                {"role": "assistant", "reasoning": best.reasoning, "content": best.answer}
            )
        yield {"messages": messages}


def is_aggregation_source(source: str) -> bool:
    """Whether the name asks for aggregation examples."""
    return source.startswith(_PREFIX)


def read_aggregation(source: str, tokenizer: Tokenizer) -> Iterator[Row | BadRow]:
    """Rows of chat data of a source such as `aggregation:records.jsonl?subset=4`.

    Raises:
      DataError: for a source or an option that does not exist.
    """
    name, _, query = source.removeprefix(_PREFIX).partition("?")
    options = integer_options(source, query)
    known = {field.name for field in dataclasses.fields(AggregationSettings)}
    try:
        settings = AggregationSettings(**{k: v for k, v in options.items() if k in known})
    except ConfigError as error:
        raise DataError(f"source {source!r}: {error}") from error
    of_task = {key: value for key, value in options.items() if key not in known or key == "seed"}
    yield from aggregation_examples(name, of_task, settings, tokenizer)


def aggregation_examples(
    name: str,
    of_task: Mapping[str, int],
    settings: AggregationSettings,
    tokenizer: Tokenizer,
    *,
    target: bool = True,
) -> Iterator[Row | BadRow]:
    """The examples of all records, those that cannot be used as bad rows.

    Args:
      name: file, folder or URL of records, or a task of generated problems.
      of_task: options of the task.
      settings: how to draw.
      tokenizer: counts the tokens of tails.
      target: as for `aggregation_rows`.

    Raises:
      DataError: for a file, a task or an option that does not exist.
    """
    for row in _records(name, of_task, settings):
        if isinstance(row, BadRow):
            yield row
            continue
        try:
            record = parse_record(row.fields)
        except RowError as error:
            yield BadRow(row.place, str(error))
            continue
        for fields in aggregation_rows(record, settings, tokenizer, target=target):
            yield Row(row.place, fields)


def _records(
    name: str, of_task: Mapping[str, int], settings: AggregationSettings
) -> Iterator[Row | BadRow]:
    files = row_files_of(name)
    if not files:
        made = candidate_records(name, name, of_task, settings.candidates)
        for number, fields in enumerate(made, start=1):
            yield Row(f"{name}:{number}", fields)
        return
    unknown = sorted(set(of_task) - {"seed"})
    if unknown:
        raise DataError(f"aggregation of {name!r} takes no option {', '.join(unknown)}")
    for file in files:
        yield from read_rows(file)


def _solution(index: int, fields: Any) -> Solution:
    if not isinstance(fields, Mapping):
        raise RowError(f"candidate {index} is {type(fields).__name__}, expected an object")
    try:
        reasoning, answer = _text_field(fields, "reasoning"), _text_field(fields, "answer")
    except RowError as error:
        raise RowError(f"candidate {index}: {error}") from None
    if not answer.strip():
        raise RowError(f"candidate {index}: the answer is empty")
    correct = fields.get("correct")
    if correct is not None and not isinstance(correct, bool):
        raise RowError(f"candidate {index}: 'correct' is {correct!r}, neither true nor false")
    return Solution(reasoning.strip("\n"), answer, correct)


def _text_field(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RowError(f"{name!r} is {type(value).__name__}, expected text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise RowError(f"{name!r} holds half of a surrogate pair") from None
    return value


def _targets(candidates: Sequence[Solution]) -> list[int]:
    """Those that may be the target: the right ones; all where none was checked."""
    if all(one.correct is None for one in candidates):
        return list(range(len(candidates)))
    return [index for index, one in enumerate(candidates) if one.correct]


def _draw(
    record: Record, others: Sequence[int], settings: AggregationSettings, rng: np.random.Generator
) -> list[int]:
    """Which attempts are shown, in their order in the prompt."""
    least = settings.least_subset or settings.subset
    size = min(int(rng.integers(least, settings.subset + 1)), len(others))
    right = [index for index in others if record.candidates[index].correct]
    wrong = [index for index in others if record.candidates[index].correct is False]
    if len(right) + len(wrong) < len(others):  # not all were checked
        return [int(index) for index in rng.choice(others, size, replace=False)]
    count = int(rng.integers(max(0, size - len(wrong)), min(size, len(right)) + 1))
    drawn = [*_some(right, count, rng), *_some(wrong, size - count, rng)]
    return [drawn[place] for place in rng.permutation(size)]


def _some(pool: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    return [int(index) for index in rng.choice(pool, count, replace=False)] if count else []


def _shown(solution: Solution, settings: AggregationSettings, tokenizer: Tokenizer) -> Piece:
    """What inference passes on of a rollout: the end of its reasoning, or its answer."""
    # A model that closes its reasoning writes a line break first.
    ids = [*tokenizer.encode(solution.reasoning), *tokenizer.encode("\n")]
    budget = settings.thinking_budget or len(ids)
    if settings.pass_answers and len(ids) <= budget:
        return Piece(solution.answer)
    return Piece(_text(ids[:budget][-settings.tail :], tokenizer))


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Text of ids without the halves of characters at its ends."""
    text = tokenizer.decode(ids, keep_special=True)
    return text.strip(_CUT)
