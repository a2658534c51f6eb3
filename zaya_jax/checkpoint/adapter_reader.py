"""A LoRA run's checkpoint, read as the model that its adapters make of their base.

The checkpoint holds adapters and balancing biases; the frozen parameters stay where the run took
them from. Whoever reads a checkpoint of a LoRA run gets merged parameters, so it can be served,
evaluated, trained on and converted like any other; converting it is merging it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.manifest import find_damage, read_manifest
from zaya_jax.checkpoint.orbax_reader import (
    METADATA,
    OrbaxReader,
    open_arrays,
    read_metadata,
    saved_config,
)
from zaya_jax.checkpoint.reader import BLOCK_BYTES, Index, Reader, block_shape, blocks
from zaya_jax.checkpoint.tensor_rule import LeafPath
from zaya_jax.config import ConfigError
from zaya_jax.lora_settings import A, B, LoraConfig

BASE_CHECKSUM = "base_checksum"  # key of the metadata: of the frozen parameters
_BALANCING = ("balancing", "biases")


def adapter_settings(folder: Path) -> LoraConfig | None:
    """How the adapters of a checkpoint are to be used; None where it holds a whole model.

    Raises:
      CheckpointError: when its description is damaged.
      ConfigError: when it says something that cannot be.
    """
    fields = read_metadata(folder)["config"].get("lora")
    if not isinstance(fields, Mapping) or not fields.get("rank"):
        return None
    try:
        return LoraConfig(**fields)
    except TypeError as error:
        raise ConfigError(f"{folder / METADATA / METADATA}: lora: {error}") from None


class AdapterReader(Reader):
    """Adapters over the checkpoint they belong to."""

    layout = OrbaxReader.layout

    def __init__(self, folder: Path, settings: LoraConfig, base: Reader) -> None:
        """Opens the adapters, which are small, and compares `base` with what they were trained on.

        Raises:
          CheckpointError: when the adapters are damaged, or `base` is another model.
        """
        damage = find_damage(folder)
        if damage is not None:
            raise CheckpointError(f"{folder} is damaged: {damage}; choose another checkpoint")
        metadata = read_metadata(folder)
        self.path, self.base, self.settings = folder, base, settings
        self.config = saved_config(folder, metadata)
        arrays = open_arrays(folder, read_manifest(folder))
        whole = {
            path: np.asarray(array.read(tuple(slice(0, size) for size in array.shape)))
            for path, array in arrays.items()
        }
        if _BALANCING not in whole:
            raise CheckpointError(f"{folder} lacks {'/'.join(_BALANCING)!r}")
        self.balancing = whole[_BALANCING]
        self.adapters = {
            path[:-1]: (whole[path], whole[*path[:-1], B]) for path in whole if path[-1] == A
        }
        _check_shapes(folder, self.adapters, base, settings)
        if base_checksum(base) != metadata.get(BASE_CHECKSUM):
            raise CheckpointError(
                f"{base.path} holds other parameters than those the adapters of {folder} were "
                "trained on; put them back"
            )
        self.rules, self.carried, self.companions = base.rules, base.carried, base.companions
        self.notes, self.released_balancing = list(base.notes), base.released_balancing
        self.is_trained_here = True
        self.leaves = {
            path: dataclasses.replace(leaf, dtype=np.dtype(np.float32))
            if path in self.adapters or path == _BALANCING
            else leaf
            for path, leaf in base.leaves.items()
        }

    def read(self, path: LeafPath, index: Index) -> np.ndarray:
        """A part of a leaf, merged where it has an adapter."""
        if path == _BALANCING:
            return self.balancing[index]
        block = self.base.read(path, index)
        if path not in self.adapters:
            return block
        a, b = self.adapters[path]
        *stack, rows, columns = index
        whole = slice(None)
        product = np.matmul(b[(*stack, rows, whole)], a[(*stack, whole, columns)])
        return block.astype(np.float32) + np.float32(self.settings.scale) * product

    def place(self, path: LeafPath, position: tuple[int, ...]) -> str:
        """Leaf and folder."""
        if path in self.adapters or path == _BALANCING:
            return f"{self.path}: leaf {'/'.join(path)!r}"
        return self.base.place(path, position)

    def release(self) -> None:
        """Lets go of what was read of the base."""
        self.base.release()


def base_checksum(reader: Reader) -> int:
    """`zaya_jax.lora.params_checksum` of stored parameters, a block at a time."""
    total = 0
    for number, path in enumerate(sorted(path for path in reader.leaves if path[0] == "params")):
        leaf = reader.leaves[path]
        block = block_shape(leaf.shape, leaf.dtype.itemsize, BLOCK_BYTES)
        for index in blocks(leaf.shape, block):
            part = np.ascontiguousarray(reader.read(path, index), np.float32)
            total += int(part.view(np.uint32).sum(dtype=np.uint64)) * (2 * number + 1)
        reader.release()
    return total % 2**32


def _check_shapes(
    folder: Path,
    adapters: Mapping[LeafPath, tuple[np.ndarray, np.ndarray]],
    base: Reader,
    settings: LoraConfig,
) -> None:
    for path, (a, b) in adapters.items():
        name = "/".join(path)
        if path not in base.leaves:
            raise CheckpointError(f"{folder} adapts {name!r}, which {base.path} does not have")
        *stack, rows, columns = base.leaves[path].shape
        wanted = ((*stack, settings.rank, columns), (*stack, rows, settings.rank))
        if (a.shape, b.shape) != wanted:
            raise CheckpointError(
                f"{folder}: the adapter of {name!r} has shapes {list(a.shape)} and "
                f"{list(b.shape)}, {base.path} asks for {list(wanted[0])} and {list(wanted[1])}"
            )


def base_of(folder: Path) -> Path:
    """Where the parameters are that the adapters of a checkpoint were trained on.

    Raises:
      CheckpointError: when they are not there any more.
    """
    start: Any = read_metadata(folder)["config"].get("init_from")
    if not isinstance(start, str) or not start or "\0" in start or not Path(start).is_dir():
        raise CheckpointError(
            f"{folder} holds adapters of the model init_from={start!r}, which is not there; put "
            "it back, or go to where the run was started"
        )
    return Path(start)
