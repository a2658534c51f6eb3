"""``metrics.jsonl``: one JSON object a line, the record of a run that everything else reads.

Every record has ``kind`` ("train", "validation" or "event"), ``step`` and ``time`` (Unix seconds).
JSON knows no NaN or infinity: they are written as the strings "NaN", "Infinity" and "-Infinity",
which ``read_metrics`` (and ``float`` in Python, ``Number`` in JavaScript) turn back into numbers.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FILE_NAME = "metrics.jsonl"
KINDS = ("train", "validation", "event")

Record = dict[str, Any]

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TEXT_FIELDS = frozenset({"kind", "source", "name", "detail"})  # never read as numbers


class MetricsError(ValueError):
    """A metrics file or record cannot be used. The message names file, line and mend."""


class JsonlWriter:
    """Appends records to ``workdir/metrics.jsonl``, each line handed to the system at once.

    Args:
      workdir: an existing folder.
      resume_step: the step training continues from. Records of later steps belong to a run that
        was interrupted and are dropped, so that the file tells one story. None starts anew.

    Raises:
      MetricsError: when the existing file is damaged anywhere but in its last line.
    """

    def __init__(self, workdir: Path, resume_step: int | None = None) -> None:
        self.path = workdir / FILE_NAME
        if resume_step is None:
            self.path.write_text("", encoding="utf-8")
        elif self.path.exists():
            _keep_until(self.path, resume_step)
        # Without a buffer: on a full disk nothing is left over that would fail again at the end.
        self._file = self.path.open("ab", buffering=0)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record, already plain (see `plain_record`)."""
        rest = memoryview(_to_line(record).encode("utf-8"))
        while rest:  # a disk that fills up takes a part, then raises
            rest = rest[self._file.write(rest) :]

    def flush(self) -> None:
        """Force what was written onto the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        self._file.close()


def plain_record(record: Mapping[str, Any]) -> Record:
    """A copy with arrays as lists and array scalars as Python numbers.

    Raises:
      MetricsError: when kind, step or time is missing or wrong, or a value is no number, text or
        array.
    """
    if record.get("kind") not in KINDS:
        raise MetricsError(f"kind={record.get('kind')!r} must be one of: {', '.join(KINDS)}")
    plain = {name: _plain(name, value) for name, value in record.items()}
    for name, types in (("step", int), ("time", (int, float))):
        if not isinstance(plain.get(name), types) or isinstance(plain[name], bool):
            raise MetricsError(f"a {plain['kind']} record needs a number as {name}: {record!r}")
    return plain


def read_metrics(workdir: Path | str) -> list[Record]:
    """The records of a run, in order. A torn last line, as a killed run leaves it, is left out.

    When a step was reported twice (validated again after resuming, say), the later record stands.

    Raises:
      MetricsError: when the file is missing, holds no record, or is damaged before its last line.
    """
    path = Path(workdir) / FILE_NAME
    if not path.is_file():
        raise MetricsError(f"{path} does not exist; give the --workdir of a training run")
    records: dict[tuple[Any, ...], Record] = {}
    for number, record in enumerate(_read_lines(path)):
        is_event = record["kind"] == "event"
        key = (record["kind"], record["step"], number if is_event else record.get("source"))
        records[key] = {
            name: value if name in _TEXT_FIELDS else _restore_numbers(value)
            for name, value in record.items()
        }
    if not records:
        raise MetricsError(f"{path} holds no records; the run has not finished its first step")
    return list(records.values())


def _keep_until(path: Path, last_step: int) -> None:
    """Rewrite the file without later steps; the old file stays until the new one is complete."""
    temporary = path.with_suffix(".jsonl.partial")
    with temporary.open("w", encoding="utf-8") as file:
        for record in _read_lines(path):
            if record["step"] <= last_step:
                file.write(_to_line(record))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read_lines(path: Path) -> Iterator[Record]:
    """Records as stored, the strings of non-finite numbers untouched."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            is_torn = not line.endswith(b"\n")  # only the last line can lack its end
            try:
                record = json.loads(line)
            except ValueError:  # not JSON, or not UTF-8
                record = None
            if not _is_record(record):
                if is_torn:
                    return
                raise MetricsError(
                    f"{path}, line {number} is not a metrics record: {line[:60]!r}; "
                    "remove the line or the file"
                )
            yield record


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") in KINDS and type(value.get("step")) is int


def _to_line(record: Mapping[str, Any]) -> str:
    return json.dumps(_name_non_finite(record), allow_nan=False, separators=(",", ":")) + "\n"


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, entry) for entry in value]
    if hasattr(value, "dtype"):  # NumPy and JAX arrays and scalars
        array = np.asarray(value)
        if array.dtype.kind in "biu":
            return array.tolist()
        if array.dtype.kind in "fV":  # V: bfloat16, which NumPy does not know
            return array.astype(np.float64).tolist()
    raise MetricsError(
        f"metric {name} is a {type(value).__name__}; expected a number, text or array"
    )


def _name_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_name_non_finite(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: _name_non_finite(entry) for name, entry in value.items()}
    return value


def _restore_numbers(value: Any) -> Any:
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, list):
        return [_NON_FINITE.get(e, e) if isinstance(e, str) else e for e in value]
    return value
