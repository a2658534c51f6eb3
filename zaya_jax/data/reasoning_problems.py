"""Problems of `reasoning_gym` with worked traces, as conversations with a think block.

    reasoning_gym:TASK?size=2000&seed=0&max_terms=3

The part behind `?` is optional: `size` problems, `seed`, and whatever the task's own config takes.
With `boxed=1` questions ask for the final answer in a box, and answers give it, as tasks of the
kind `final_answer` want it (`zaya_jax.evaluation`). Problem i of seed s is problem 0 of seed s + i:
seeds of data that must not overlap have to be `size` apart.
The library gives question and answer; the trace that leads from one to the other is worked out
here, so only tasks with a rule in `worked_traces` can be used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from zaya_jax.data.boxed_answer import ask_boxed, boxed
from zaya_jax.data.config import DataError
from zaya_jax.data.row_files import optional_library
from zaya_jax.data.worked_traces import TRACES, right_trace, wrong_trace

_PREFIX = "reasoning_gym:"
_SIZE = 2_000


def is_problem_source(source: str) -> bool:
    """Whether the name asks for generated problems."""
    return source.startswith(_PREFIX)


def read_problems(source: str) -> Iterator[Mapping[str, Any]]:
    """Rows of chat data, the same for the same source.

    Raises:
      DataError: for a task without traces, an option the task does not take, or when the library
        is not installed.
    """
    task, _, query = source.removeprefix(_PREFIX).partition("?")
    for problem in _generate(source, task, integer_options(source, query)):
        yield {
            "messages": [
                {"role": "user", "content": problem.question},
                {
                    "role": "assistant",
                    "reasoning": right_trace(task, problem.metadata).reasoning,
                    "content": problem.answer,
                },
            ]
        }


def candidate_records(
    source: str, task: str, options: Mapping[str, int], candidates: int
) -> Iterator[Mapping[str, Any]]:
    """Problems with right and wrong worked solutions, in the form `aggregation` reads.

    Args:
      source: what messages call them.
      task: one of the tasks with traces.
      options: `size`, `seed`, and what the task takes.
      candidates: solutions of each problem. At least one is right; how many are is drawn evenly.

    Raises:
      DataError: as `read_problems`.
    """
    draw = random.Random(options.get("seed", 0))
    for problem in _generate(source, task, options):
        right = draw.randint(1, candidates)
        worked = [right_trace(task, problem.metadata)] * right
        worked += [wrong_trace(task, problem.metadata, draw) for _ in range(candidates - right)]
        yield {
            "problem": problem.question,
            "candidates": [
                {
                    "reasoning": one.reasoning,
                    "answer": boxed(one.answer) if problem.is_boxed else one.answer,
                    "correct": number < right,
                }
                for number, one in enumerate(worked)
            ],
        }


def integer_options(source: str, query: str) -> dict[str, int]:
    """What stands behind the `?` of a source.

    Raises:
      DataError: for a value that is no integer.
    """
    return {name: _number(source, name, value) for name, value in parse_qsl(query)}


class _Problem(NamedTuple):
    question: str
    answer: str
    metadata: Mapping[str, Any]
    is_boxed: bool


def _generate(source: str, task: str, options: Mapping[str, int]) -> Iterator[_Problem]:
    if task not in TRACES:
        raise DataError(f"source {source!r}: {task!r} is none of: {', '.join(TRACES)}")
    library = optional_library("reasoning_gym", source)
    of_task = {"size": _SIZE, "seed": 0, **options}
    is_boxed = bool(of_task.pop("boxed", 0))
    try:
        problems = library.create_dataset(task, **of_task)
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(
            f"source {source!r}: the task does not take these options: {error}"
        ) from error

    for problem in problems:
        question, answer = problem["question"], str(problem["answer"])
        if is_boxed:
            question, answer = ask_boxed(question), boxed(answer)
        yield _Problem(question, answer, problem["metadata"], is_boxed)


def _number(source: str, name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise DataError(f"source {source!r}: {name}={value!r} is not an integer") from None
