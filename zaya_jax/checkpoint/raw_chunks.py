"""Arrays in uncompressed chunks, as a conversion writes them: a chunk's file is its bytes.

Reading one is a memory map and a checksum; TensorStore would copy it first. Files in any other form
are left to TensorStore.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from zaya_jax.checkpoint.companions import inside_folder
from zaya_jax.checkpoint.error import CheckpointError, reason_of
from zaya_jax.checkpoint.manifest import MANIFEST, Manifest
from zaya_jax.checkpoint.strict_json import read_object

ARRAY_METADATA = ".zarray"

_LARGEST = 1 << 48  # of an axis
_DTYPES: dict[str, np.dtype] = {"<f4": np.dtype(np.float32), "<f2": np.dtype(np.float16)}
_DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)


def array_description(shape: tuple[int, ...], chunk: tuple[int, ...], dtype: np.dtype) -> dict:
    """What Zarr (version 2) wants to know of an array in raw chunks."""
    return {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunk),
        "dtype": "bfloat16" if dtype == ml_dtypes.bfloat16 else dtype.str,
        "compressor": None,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "dimension_separator": ".",
    }


def chunk_name(numbers: tuple[int, ...]) -> str:
    """Name of the file of a chunk, by its place in the grid of chunks."""
    return ".".join(str(number) for number in numbers)


def open_raw_array(checkpoint: Path, name: str, manifest: Manifest) -> RawArray | None:
    """The array in a folder below a checkpoint; None when it is not in raw chunks.

    Raises:
      CheckpointError: when its description cannot be read or is impossible.
    """
    if not (checkpoint / name / ARRAY_METADATA).exists():
        return None
    file = inside_folder(checkpoint, f"{name}/{ARRAY_METADATA}")
    found = read_object(file)
    shape, chunk = _sizes(file, found, "shape", 0), _sizes(file, found, "chunks", 1)
    if len(shape) != len(chunk):
        raise CheckpointError(
            f"{file}: shape {shape} and chunks {chunk} have other numbers of axes"
        )
    text = found.get("dtype")
    dtype = _DTYPES.get(text) if isinstance(text, str) else None
    if dtype is None:
        return None
    if found != array_description(shape, chunk, dtype):
        return None
    return RawArray(checkpoint, name, shape, chunk, dtype, manifest)


def _sizes(file: Path, found: dict[str, Any], key: str, least: int) -> tuple[int, ...]:
    value = found.get(key)
    if not isinstance(value, list) or not all(
        type(size) is int and least <= size <= _LARGEST for size in value
    ):
        raise CheckpointError(
            f"{file}: {key}={str(value)[:60]} must be a list of whole numbers, at least {least}"
        )
    return tuple(value)


class RawArray:
    """One array; every chunk's checksum is compared when it is read for the first time."""

    def __init__(
        self,
        checkpoint: Path,
        name: str,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        dtype: np.dtype,
        manifest: Manifest,
    ) -> None:
        self.shape, self.chunk, self.dtype = shape, chunk, dtype
        self._checkpoint, self._name, self._manifest = checkpoint, name, manifest
        self._checked: set[str] = set()
        self._lock = threading.Lock()

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """A part of the array; a read-only view where it lies in one chunk.

        Raises:
          CheckpointError: when a chunk is not what was written.
        """
        grid = [
            range(part.start // step, -(-part.stop // step))
            for part, step in zip(index, self.chunk, strict=True)
        ]
        if math.prod(map(len, grid)) == 1:
            numbers = tuple(numbers[0] for numbers in grid)
            inside, _ = self._overlap(numbers, index)
            return self._chunk(numbers)[inside]
        result = np.empty([part.stop - part.start for part in index], self.dtype)
        for numbers in itertools.product(*grid):
            inside, outside = self._overlap(numbers, index)
            result[outside] = self._chunk(numbers)[inside]
        return result

    def _overlap(
        self, numbers: tuple[int, ...], index: tuple[slice, ...]
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where a chunk and a part of the array meet: in the chunk, and in the part."""
        inside, outside = [], []
        for number, step, part in zip(numbers, self.chunk, index, strict=True):
            start, stop = max(number * step, part.start), min((number + 1) * step, part.stop)
            inside.append(slice(start - number * step, stop - number * step))
            outside.append(slice(start - part.start, stop - part.start))
        return tuple(inside), tuple(outside)

    def _chunk(self, numbers: tuple[int, ...]) -> np.ndarray:
        name = f"{self._name}/{chunk_name(numbers)}"
        path = inside_folder(self._checkpoint, name)
        expected = math.prod(self.chunk) * self.dtype.itemsize
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected:
                    raise CheckpointError(
                        f"{self._checkpoint} is damaged: {name} has {size} bytes instead of "
                        f"{expected}; choose another checkpoint"
                    )
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(
                f"{self._checkpoint} is damaged: {name} cannot be read ({reason_of(error)}); "
                "choose another checkpoint"
            ) from None
        with self._lock:
            is_new = name not in self._checked
            self._checked.add(name)
        recorded = self._manifest.get(name)
        if recorded is None:
            raise CheckpointError(f"{self._checkpoint} is damaged: {MANIFEST} does not list {name}")
        if is_new and hashlib.sha256(data).hexdigest() != recorded["sha256"]:
            raise CheckpointError(
                f"{self._checkpoint} is damaged: {name} has changed since it was written (its "
                "checksum differs); choose another checkpoint"
            )
        return np.frombuffer(data, self.dtype).reshape(self.chunk)
