"""Problems of a task, and the JSON-lines files they come from.

One JSON object a line. `id` names the problem in results; left out, the line number does. `meta`
may hold anything and is ignored. The other fields are those of the task, each with its check:

    FIELDS = {"problem": text, "answer": text}

A file that breaks a rule is refused as a whole, with file, line and field: a benchmark with some
problems left out would be another benchmark.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zaya_jax.data.config import DataError
from zaya_jax.data.row_files import BadRow, is_row_file, read_rows
from zaya_jax.evaluation.errors import EvaluationError


class FieldError(ValueError):
    """A value is not what its field must hold. The message starts with the field's path."""


Check = Callable[[str, Any], Any]


@dataclasses.dataclass(frozen=True)
class Item:
    """One problem.

    Attributes:
      id: unique within the task.
      prompt: the user's turn, saying which form the answer shall have.
      reference: what grading needs.
    """

    id: str
    prompt: str
    reference: Any


def read_fields(path: Path, fields: Mapping[str, Check]) -> Iterator[tuple[str, str, dict]]:
    """(place, id, checked fields) of every line.

    Args:
      path: a file of rows, see `zaya_jax.data.row_files`.
      fields: name and check of every field a line must have.

    Raises:
      EvaluationError: for a missing or empty file, a line that is no object, a missing, unknown or
        wrong field, or an id that comes twice.
    """
    if not is_row_file(path.name):
        raise EvaluationError(f"{path}: its name must end in .jsonl")
    if not path.is_file():
        raise EvaluationError(f"{path} does not exist; `data` names the folder of the task's files")
    seen: dict[str, str] = {}
    try:
        for number, row in enumerate(read_rows(str(path)), start=1):
            if isinstance(row, BadRow):
                raise EvaluationError(f"{row.place}: {row.reason}")
            try:
                values = _checked(row.fields, fields)
            except FieldError as error:
                raise EvaluationError(f"{row.place}: {error}") from None
            own = str(row.fields.get("id", number))
            if own in seen:
                raise EvaluationError(f"{row.place}: id {own!r} is also that of {seen[own]}")
            seen[own] = row.place
            yield row.place, own, values
    except DataError as error:
        raise EvaluationError(str(error)) from error
    if not seen:
        raise EvaluationError(f"{path} holds no problem")


def _checked(row: Mapping[str, Any], fields: Mapping[str, Check]) -> dict[str, Any]:
    known = [*fields, "id", "meta"]
    for name in row:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"fields are {', '.join(known)}"
            raise FieldError(f"{name}: unknown field; {hint}")
    for name in fields:
        if name not in row:
            raise FieldError(f"{name}: missing")
    identity = row.get("id", "")
    if isinstance(identity, bool) or not isinstance(identity, (str, int)):
        raise FieldError(f"id: {identity!r} must be text or an integer")
    return {name: check(name, row[name]) for name, check in fields.items()}


def text(name: str, value: Any) -> str:
    """Text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise FieldError(f"{name}: {_short(value)} must be text, and not empty")
    return encodable(name, value)


def any_text(name: str, value: Any) -> str:
    """Text, perhaps empty."""
    if not isinstance(value, str):
        raise FieldError(f"{name}: {_short(value)} must be text")
    return encodable(name, value)


def encodable(name: str, value: str) -> str:
    """Text that UTF-8 can represent: JSON can spell half of a surrogate pair."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise FieldError(f"{name}: holds half of a surrogate pair") from None
    return value


def listed(name: str, value: Any, check: Check, *, least: int = 1) -> list[Any]:
    """A list of at least so many checked values."""
    if not isinstance(value, list) or len(value) < least:
        raise FieldError(f"{name}: {_short(value)} must be a list of at least {least}")
    return [check(f"{name}[{i}]", entry) for i, entry in enumerate(value)]


def record(name: str, value: Any, fields: Mapping[str, Check]) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(value, dict) or set(value) != set(fields):
        raise FieldError(f"{name}: {_short(value)} must be an object of {', '.join(fields)}")
    return {key: check(f"{name}.{key}", value[key]) for key, check in fields.items()}


def digest(items: Sequence[Item]) -> str:
    """Of all problems, for noticing that a file has changed between two runs."""
    plain = [[item.id, item.prompt, repr(item.reference)] for item in items]
    return hashlib.sha256(json.dumps(plain).encode("utf-8")).hexdigest()[:16]


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
