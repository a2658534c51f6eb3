"""What every checkpoint looks like from inside, whatever its layout: leaves read in slices."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.tensor_rule import LeafPath, Rules, TensorRule
from zaya_jax.config import ModelConfig

Index = tuple[slice, ...]  # one slice with start and stop for every axis of a leaf

BLOCK_BYTES = 32 << 20  # read, checked and written at a time
_CHECKED_ELEMENTS = 1 << 18  # at a time, so that they stay in the processor's cache


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf as it is stored."""

    rule: TensorRule
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: tuple[int, ...]  # smallest part that can be read by itself

    @property
    def nbytes(self) -> int:
        """Bytes of the whole leaf."""
        return math.prod(self.shape) * self.dtype.itemsize


class Reader(abc.ABC):
    """A checkpoint open for reading. All names, shapes and dtypes have been checked.

    Attributes:
      path: the folder.
      layout: name of the layout.
      config: the architecture.
      rules: of the layout, or of the transformers layout where names are not stored.
      leaves: what is stored, by path in the variables tree.
      carried: keys of the released config.json that are no part of the architecture.
      notes: remarks for the user, one line each.
      released_balancing: dtype that the balancing biases have, or had, in the released files.
      is_trained_here: whether it is a checkpoint of a run, rather than a release converted.
      companions: tokenizer files and the like, by the name they have in a released folder.
    """

    path: Path
    layout: str
    config: ModelConfig
    rules: Rules
    leaves: dict[LeafPath, Leaf]
    carried: dict[str, Any]
    notes: list[str]
    released_balancing: np.dtype
    is_trained_here: bool
    companions: dict[str, Path]

    @abc.abstractmethod
    def read(self, path: LeafPath, index: Index) -> np.ndarray:
        """A part of a leaf, perhaps a read-only view."""

    @abc.abstractmethod
    def place(self, path: LeafPath, position: tuple[int, ...]) -> str:
        """Tensor and file that hold an element, for messages."""

    @abc.abstractmethod
    def release(self) -> None:
        """Lets go of memory that held what was read so far."""

    def read_leaf(self, path: LeafPath) -> np.ndarray:
        """A whole leaf."""
        return self.read(path, tuple(slice(0, size) for size in self.leaves[path].shape))

    @property
    def parameter_count(self) -> int:
        """All stored numbers, balancing biases among them."""
        return sum(math.prod(leaf.shape) for leaf in self.leaves.values())


def blocks(shape: tuple[int, ...], block: tuple[int, ...]) -> Iterator[Index]:
    """Cuts a leaf into blocks; those at the ends may be smaller."""
    counts = [-(-size // step) for size, step in zip(shape, block, strict=True)]
    for position in np.ndindex(*counts):
        yield tuple(
            slice(i * step, min((i + 1) * step, size))
            for i, step, size in zip(position, block, shape, strict=True)
        )


def block_shape(shape: tuple[int, ...], itemsize: int, most_bytes: int) -> tuple[int, ...]:
    """The largest block of whole trailing axes that stays below a size, one element at least."""
    block = list(shape)
    for axis, size in enumerate(shape):
        rest = itemsize * math.prod(shape[axis + 1 :])
        block[axis] = min(size, max(1, most_bytes // rest))
        if rest <= most_bytes:
            break
    return tuple(block)


def common_block(
    shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> tuple[int, ...]:
    """A block that is whole multiples of both: nothing is read or written twice."""
    common = (math.lcm(a, b) for a, b in zip(first, second, strict=True))
    return tuple(min(size, step) for size, step in zip(shape, common, strict=True))


def check_finite(
    reader: Reader, path: LeafPath, index: Index, block: np.ndarray, *, because: str = ""
) -> None:
    """Refuses NaN and infinity; `because` comes before what was found.

    Raises:
      CheckpointError: names the tensor that holds the first one.
    """
    flat = block.reshape(-1)
    for start in range(0, flat.size, _CHECKED_ELEMENTS):
        part = flat[start : start + _CHECKED_ELEMENTS]
        if _all_finite(part):
            continue
        offset = start + int(np.argmin(np.isfinite(part)))
        inside = np.unravel_index(offset, block.shape)
        position = tuple(int(i) + s.start for i, s in zip(inside, index, strict=True))
        value = float(flat[offset])
        raise CheckpointError(
            f"{reader.place(path, position)} holds {because}{value} at {list(position)} of "
            f"{'/'.join(path)}; "
            + (
                "choose a wider one"
                if because
                else "the file is damaged or its training had failed"
            )
        )


def _all_finite(part: np.ndarray) -> bool:
    if part.dtype != ml_dtypes.bfloat16:
        return bool(np.isfinite(part).all())
    # Exponent bits all set; an integer comparison is many times faster than going through floats.
    return not part.size or int((part.view(np.uint16) & 0x7FFF).max()) < 0x7F80


def grown_block(
    shape: tuple[int, ...], unit: tuple[int, ...], itemsize: int, most_bytes: int
) -> tuple[int, ...]:
    """The largest block of whole units below a size; axes grow from the last one on."""
    block = list(unit)
    for axis in reversed(range(len(shape))):
        room = most_bytes // (itemsize * math.prod(block))
        block[axis] = min(shape[axis], block[axis] * max(1, room))
        if block[axis] < shape[axis]:
            break
    return tuple(block)
