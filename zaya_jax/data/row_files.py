"""Files of rows: JSON lines, Parquet, Arrow, ArrayRecord, by the ending of their name.

| ending | needs |
| --- | --- |
| `.jsonl`, `.ndjson`, with `.gz` | nothing |
| the same with `.zst` | zstandard, from the extra `data` |
| `.parquet`, `.arrow` (hub datasets saved to disk) | pyarrow, from the extra `data` |
| `.arrayrecord`, `.array_record` (each record one JSON object) | array_record |

Every place a path may stand, an fsspec URL such as `gs://bucket/file.jsonl` may stand too, but for
ArrayRecord, which reads local files only. A row that cannot be read is yielded as a `BadRow` with
its place; the rest of the file goes on. What makes a whole file unreadable is a `DataError`.
"""

from __future__ import annotations

import gzip
import importlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from zaya_jax.data.config import DataError

MOST_ROW_BYTES = 16 * 2**20  # a longer line is a bad row, and is never held in memory whole


class Row(NamedTuple):
    """One object, and where it stands: "file:line" or "file:row"."""

    place: str
    fields: Mapping[str, Any]


class BadRow(NamedTuple):
    """A place where a row should be, and why it is none."""

    place: str
    reason: str


def is_row_file(path: str) -> bool:
    """Whether the name ends like a file of rows."""
    return _reader_of(path) is not None


def row_files_of(source: str) -> list[str]:
    """The files of rows that a path names: itself, or all below a folder; sorted."""
    if is_row_file(source):
        return [source]
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return []
    return sorted(str(file) for file in folder.rglob("*") if is_row_file(file.name))


def read_rows(path: str) -> Iterator[Row | BadRow]:
    """Rows of one file in their order.

    Raises:
      DataError: when the file is missing, damaged, of an unknown kind, or needs a library that is
        not installed.
    """
    reader = _reader_of(path)
    if reader is None:
        raise DataError(f"{path!r}: its ending names no kind of row file: {', '.join(_READERS)}")
    try:
        yield from reader(path)
    except FileNotFoundError as error:
        raise DataError(f"file {path!r} does not exist (any more); put it back") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"file {path!r} cannot be read: {error}; replace it") from error


def optional_library(name: str, path: str) -> Any:
    """An imported library that only some files need.

    Raises:
      DataError: when it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"{path!r} needs the library {name.split('.')[0]}: pip install 'zaya_jax[data]'"
        ) from error


def _json_lines(path: str) -> Iterator[Row | BadRow]:
    with open_binary(path) as raw, _decompressed(path, raw) as file:
        number = 0
        while True:
            line = file.readline(MOST_ROW_BYTES + 1)
            if not line:
                return
            number += 1
            place = f"{path}:{number}"
            if len(line) > MOST_ROW_BYTES:
                while line and not line.endswith(b"\n"):
                    line = file.readline(MOST_ROW_BYTES)
                yield BadRow(place, f"longer than {MOST_ROW_BYTES:,} bytes")
            elif line.strip():
                yield _parsed(place, line)


def _parsed(place: str, content: bytes) -> Row | BadRow:
    try:
        fields = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        return BadRow(place, "not UTF-8")
    except (ValueError, RecursionError):
        return BadRow(place, "not JSON")
    if not isinstance(fields, dict):
        return BadRow(place, "no JSON object")
    return Row(place, fields)


def _parquet(path: str) -> Iterator[Row | BadRow]:
    parquet = optional_library("pyarrow.parquet", path)
    arrow = optional_library("pyarrow", path)
    with open_binary(path) as raw:
        try:
            file = parquet.ParquetFile(raw)
            number = 0
            for batch in file.iter_batches(batch_size=1_024):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}:{number}", fields)
        except arrow.ArrowException as error:
            raise DataError(f"file {path!r} is no intact Parquet file: {error}") from error


def _arrow(path: str) -> Iterator[Row | BadRow]:
    arrow = optional_library("pyarrow", path)
    with open_binary(path) as raw:
        try:
            number = 0
            for batch in arrow.ipc.open_stream(raw):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}:{number}", fields)
        except arrow.ArrowException as error:
            raise DataError(f"file {path!r} is no intact Arrow stream: {error}") from error


def _array_record(path: str) -> Iterator[Row | BadRow]:
    module = optional_library("array_record.python.array_record_module", path)
    if not Path(path).is_file():
        raise FileNotFoundError(path)
    try:
        reader = module.ArrayRecordReader(path)
        for number in range(1, reader.num_records() + 1):
            yield _parsed(f"{path}:{number}", reader.read())
        reader.close()
    except (RuntimeError, IndexError) as error:
        raise DataError(f"file {path!r} is no intact ArrayRecord file: {error}") from error


def open_binary(path: str) -> IO[bytes]:
    """A local file or an fsspec URL, opened for reading."""
    if "://" in path:
        opened: IO[bytes] = optional_library("fsspec", path).open(path, "rb").open()
        return opened
    return open(path, "rb")


def _decompressed(path: str, raw: IO[bytes]) -> Any:
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    if path.endswith(".zst"):
        import io

        stream = optional_library("zstandard", path).ZstdDecompressor().stream_reader(raw)
        return io.BufferedReader(stream)
    return raw


_READERS: dict[str, Callable[[str], Iterator[Row | BadRow]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".jsonl.gz": _json_lines,
    ".ndjson.gz": _json_lines,
    ".jsonl.zst": _json_lines,
    ".ndjson.zst": _json_lines,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".arrayrecord": _array_record,
    ".array_record": _array_record,
}


def _reader_of(path: str) -> Callable[[str], Iterator[Row | BadRow]] | None:
    return next((read for ending, read in _READERS.items() if path.endswith(ending)), None)
