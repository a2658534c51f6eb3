"""Records from files of rows, checked against the record's own fields; and their levels.

    records = from_jsonl("problems.jsonl", CodeRecord)

Each row is a JSON object with the fields of the record's dataclass: those without a default must be
there, others may be. Text, integers, lists and nested records are checked by the annotations, the
rest by the record itself. `id` and `meta` may hold anything and are ignored. A file with a bad row
is refused as a whole: a run on part of the problems would be another run.
"""

from __future__ import annotations

import dataclasses
import difflib
import random
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from zaya_jax.data.config import DataError
from zaya_jax.data.row_files import BadRow, read_rows
from zaya_jax.rl.errors import RLError

R = TypeVar("R")
_IGNORED = ("id", "meta")
_KINDS = {str: "text", int: "an integer", float: "a number"}


@runtime_checkable
class Levelled(Protocol):
    """A record that says how hard it is."""

    @property
    def level(self) -> int:
        """0 is the easiest."""
        ...


def from_jsonl(path: str, record: type[R]) -> tuple[R, ...]:
    """All records of a file, in its order.

    Args:
      path: a file of rows; see `zaya_jax.data.row_files` for its kinds.
      record: dataclass to make of each row.

    Raises:
      RLError: for a file that is missing, unreadable or empty, or a bad row, by file, line, field.
    """
    found: list[R] = []
    try:
        for row in read_rows(path):
            if isinstance(row, BadRow):
                raise RLError(f"{row.place}: {row.reason}")
            try:
                found.append(_record(row.fields, record, "", ignored=_IGNORED))
            except ValueError as error:
                raise RLError(f"{row.place}: {error}") from None
    except DataError as error:
        raise RLError(str(error)) from error
    if not found:
        raise RLError(f"{path} holds no records")
    return tuple(found)


def by_level(name: str, records: Sequence[Levelled]) -> list[list[int]]:
    """Indices of the records of each level.

    Raises:
      RLError: without records, or for a gap in the levels.
    """
    levels = {record.level for record in records}
    if levels != set(range(len(levels))) or not levels:
        raise RLError(f"{name}: levels {sorted(levels)} of the records must be 0, 1, 2, …")
    return [[i for i, r in enumerate(records) if r.level == level] for level in sorted(levels)]


def draw_record(levels: Sequence[Sequence[int]], difficulty: int, seed: int) -> int:
    """Index of a record of the level, drawn by the seed; beyond the last level, of the last."""
    return random.Random(seed).choice(levels[min(difficulty, len(levels) - 1)])


def _record(row: Mapping[str, Any], record: Any, place: str, ignored: Sequence[str] = ()) -> Any:
    wanted = {field.name: field for field in dataclasses.fields(record)}
    for name in row:
        if name not in wanted and name not in ignored:
            close = difflib.get_close_matches(name, wanted, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"fields are {', '.join(wanted)}"
            raise RLError(f"field {place + name!r} is unknown; {hint}")
    kinds, values = typing.get_type_hints(record), {}
    for name, field in wanted.items():
        if name in row:
            values[name] = _value(row[name], kinds[name], place + name)
        elif field.default is dataclasses.MISSING:
            raise RLError(f"field {place + name!r} is missing")
    return record(**values)


def _value(value: Any, kind: Any, place: str) -> Any:
    """The value as the kind of thing the record wants."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise _wrong(place, value, "an object")
        return _record(value, kind, f"{place}.")
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _wrong(place, value, "a list")
        element = typing.get_args(kind)[0]
        return tuple(_value(part, element, f"{place}[{i}]") for i, part in enumerate(value))
    accepted = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise _wrong(place, value, _KINDS[kind])
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON can spell it, programs cannot be fed with it
            raise RLError(f"field {place!r} holds half of a surrogate pair") from None
    return value


def _wrong(place: str, value: Any, wanted: str) -> RLError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return RLError(f"field {place!r} is {shown}; it must be {wanted}")
