"""Problems of `reasoning_gym` with worked traces, as conversations with a think block.

    reasoning_gym:TASK?size=2000&seed=0&max_terms=3

The part behind `?` is optional: `size` problems, `seed`, and whatever the task's own config takes.
The library gives question and answer; the trace that leads from one to the other is worked out
here, so only tasks with a rule below can be used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from zaya_jax.data.config import DataError
from zaya_jax.data.row_files import optional_library

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
    if task not in _TRACES:
        raise DataError(f"source {source!r}: {task!r} is none of: {', '.join(_TRACES)}")
    options = {name: _number(source, name, value) for name, value in parse_qsl(query)}
    library = optional_library("reasoning_gym", source)
    try:
        problems = library.create_dataset(task, **{"size": _SIZE, "seed": 0, **options})
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(
            f"source {source!r}: the task does not take these options: {error}"
        ) from error
    for problem in problems:
        reasoning, answer = _TRACES[task](problem["metadata"]), str(problem["answer"])
        yield {
            "messages": [
                {"role": "user", "content": problem["question"]},
                {"role": "assistant", "reasoning": reasoning, "content": answer},
            ]
        }


def _number(source: str, name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise DataError(f"source {source!r}: {name}={value!r} is not an integer") from None


def _chain_sum(metadata: Mapping[str, Any]) -> str:
    """The running total, one operation a line."""
    first, *rest = re.findall(r"[+-]? ?\d+", metadata["expression"])
    total, lines = int(first.replace(" ", "")), []
    for term in rest:
        new = total + int(term.replace(" ", ""))
        lines.append(f"{total} {term[0]} {term[1:].strip()} = {new}")
        total = new
    return "\n".join(lines)


def _spell_backward(metadata: Mapping[str, Any]) -> str:
    """The letters one by one, then the same from the last to the first."""
    letters = list(metadata["word"])
    return f"{' '.join(letters)}\n{' '.join(reversed(letters))}"


def _gcd(metadata: Mapping[str, Any]) -> str:
    """Euclid's algorithm."""
    numbers = list(metadata["numbers"])
    divisor, lines = numbers[0], []
    for number in numbers[1:]:
        larger, smaller = max(divisor, number), min(divisor, number)
        while smaller:
            lines.append(f"{larger} mod {smaller} = {larger % smaller}")
            larger, smaller = smaller, larger % smaller
        divisor = larger
    return "\n".join(lines)


_TRACES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "chain_sum": _chain_sum,
    "gcd": _gcd,
    "spell_backward": _spell_backward,
}
