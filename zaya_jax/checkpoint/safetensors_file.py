"""The safetensors format: an untrusted header checked in full, tensors by memory map, streamed out.

A file is eight bytes of header length (little endian), the header (JSON: name, dtype, shape and
byte range of every tensor), then the bytes of the tensors. Nothing in it is executed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from zaya_jax.checkpoint.error import CheckpointError, reason_of
from zaya_jax.checkpoint.strict_json import parse_object

DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_MOST_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_LENGTH_BYTES = 8
_ALIGNMENT = 8


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """What a header says about one tensor, found true of its file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    start: int  # offset of its first byte in the file
    end: int


class SafetensorsFile:
    """A file whose tensors are views of a memory map. It is open only while they are in use."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the header.

        Raises:
          CheckpointError: when the header is no valid description of this very file.
        """
        self.path = path
        self._map: mmap.mmap | None = None
        try:
            with path.open("rb") as file:
                self._identity = _identity(file)
                size = os.fstat(file.fileno()).st_size
                header, data_start = _read_header(path, file.read, size)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from None
        self.entries = _checked_entries(path, header, data_start, size)

    def tensor(self, name: str) -> np.ndarray:
        """A read-only view of one tensor; nothing is read before it is looked at.

        Raises:
          CheckpointError: when the file is no longer the one whose header was checked.
        """
        entry = self.entries[name]
        count = math.prod(entry.shape)
        mapped = self._map
        if mapped is None:
            mapped = self._map = self._open()
        return np.frombuffer(mapped, entry.dtype, count, entry.start).reshape(entry.shape)

    def release(self) -> None:
        """Lets go of the pages read so far and, when no view is left, of the open file."""
        self._map = None

    def _open(self) -> mmap.mmap:
        try:
            with self.path.open("rb") as file:
                if _identity(file) != self._identity:
                    raise CheckpointError(f"{self.path} changed while it was being read")
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {reason_of(error)}") from None


def _identity(file: Any) -> tuple[int, ...]:
    """What an open file must have in common with the one that was checked."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_header(path: Path, read: Any, size: int) -> tuple[dict[str, Any], int]:
    """The parsed header and the offset of the first tensor byte."""
    if size < _LENGTH_BYTES:
        raise CheckpointError(f"{path} has {size} bytes: too short for a safetensors file")
    length = int.from_bytes(read(_LENGTH_BYTES), "little")
    if length > min(size - _LENGTH_BYTES, _MOST_HEADER_BYTES):
        raise CheckpointError(
            f"{path}: the header claims {length} bytes of a file of {size}; the file is truncated "
            "or no safetensors file"
        )
    try:
        header = parse_object(read(length))
    except ValueError as error:
        raise CheckpointError(f"{path}: the header is not valid JSON: {error}") from None
    header.pop("__metadata__", None)
    return header, _LENGTH_BYTES + length


def _checked_entries(
    path: Path, header: dict[str, Any], data_start: int, size: int
) -> dict[str, TensorEntry]:
    entries = {
        name: _checked_entry(path, name, fields, data_start, size)
        for name, fields in header.items()
    }
    end, previous = data_start, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            what = "overlaps" if entry.start < end else "leaves a gap after"
            raise CheckpointError(f"{path}: tensor {name!r} {what} {previous}")
        end, previous = entry.end, repr(name)
    if end != size:
        raise CheckpointError(
            f"{path}: {size - end} bytes after the last tensor belong to none; the file is damaged"
        )
    return entries


def _checked_entry(path: Path, name: str, fields: Any, data_start: int, size: int) -> TensorEntry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: the header entry must have dtype, shape and data_offsets")
    shape, offsets = fields["shape"], fields["data_offsets"]
    for value in (shape, offsets):
        if not isinstance(value, list) or not all(type(v) is int and v >= 0 for v in value):
            raise CheckpointError(f"{where}: shape {shape!r} or data_offsets {offsets!r} is no list"
                                  " of non-negative integers")  # fmt: skip
    if not isinstance(fields["dtype"], str) or fields["dtype"] not in DTYPES:
        raise CheckpointError(
            f"{where} has dtype {fields['dtype']!r}; only {', '.join(DTYPES)} are read. Quantised "
            "releases cannot be converted: take the bfloat16 one"
        )
    dtype = DTYPES[fields["dtype"]]
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets {offsets!r} are no range")
    start, end = data_start + offsets[0], data_start + offsets[1]
    if end > size:
        raise CheckpointError(
            f"{where}: its bytes end at {end} but the file has {size}; the file is truncated or "
            "its header lies"
        )
    needed = math.prod(shape) * dtype.itemsize
    if end - start != needed:
        raise CheckpointError(
            f"{where}: shape {shape} of {fields['dtype']} takes {needed} bytes, the header gives "
            f"it {end - start}"
        )
    return TensorEntry(tuple(shape), dtype, start, end)


class SafetensorsWriter:
    """A file of known tensors, whose bytes may come in any order and from several threads."""

    def __init__(self, path: Path, tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        """Creates the file at its full size, with its header."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        self._offsets: dict[str, int] = {}
        for name, (shape, dtype) in tensors.items():
            end = offset + math.prod(shape) * dtype.itemsize
            header[name] = {
                "dtype": _DTYPE_NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [offset, end],
            }
            self._offsets[name] = offset
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._data_start = _LENGTH_BYTES + len(text)
        self._path = path
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, self._data_start + offset)  # finds a full disk now
        self._write(len(text).to_bytes(_LENGTH_BYTES, "little") + text, 0)

    def write(self, name: str, first_byte: int, part: np.ndarray) -> None:
        """Writes a contiguous part of a tensor that begins at `first_byte` of it."""
        position = self._data_start + self._offsets[name] + first_byte
        self._write(as_bytes(part), position)

    def _write(self, data: Any, position: int) -> None:
        start, rest = position, memoryview(data)
        with self._path.open(
            "r+b", buffering=0
        ) as file:  # open for this part only: shards are many
            while rest:
                written = os.pwrite(file.fileno(), rest, position)
                rest, position = rest[written:], position + written
            # Written bytes that nobody needs soon: the system begins to bring them to the disk.
            os.posix_fadvise(file.fileno(), start, position - start, os.POSIX_FADV_DONTNEED)


def as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array in C order, without a copy where it lies so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
