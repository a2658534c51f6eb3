"""Writes a folder as downloaded from the hub, part by part."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.checkpoint.companions import copy_companions
from zaya_jax.checkpoint.hub_config import CONFIG_FILE
from zaya_jax.checkpoint.hub_reader import INDEX_FILE, SINGLE_FILE
from zaya_jax.checkpoint.reader import Index
from zaya_jax.checkpoint.safetensors_file import SafetensorsWriter
from zaya_jax.checkpoint.tensor_rule import LeafPath, Rules, TensorRule
from zaya_jax.config import ModelConfig

# Tensor name -> shape and dtype.
TensorTable = dict[str, tuple[tuple[int, ...], np.dtype]]


class HubWriter:
    """A released checkpoint being written into an empty folder; parts may come from threads."""

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        rules: Rules,
        dtypes: Mapping[LeafPath, np.dtype],
        max_shard_bytes: int,
    ) -> None:
        """Creates all files at their full size."""
        self._folder, self._config = folder, config
        self._rules = {rule.path: rule for rule in rules}
        self.chunks = {rule.path: _smallest_part(rule, config) for rule in rules}
        self._shards = _plan_shards(_tensors_in_order(config, rules, dtypes), max_shard_bytes)
        self._file_of: dict[str, SafetensorsWriter] = {}
        for name, table in self._shards.items():
            file = SafetensorsWriter(folder / name, table)
            self._file_of.update(dict.fromkeys(table, file))

    def write(self, path: LeafPath, index: Index, block: np.ndarray) -> None:
        """Writes a part that is whole in all but the first axis of each tensor."""
        rule = self._rules[path]
        inside = index[rule.stacked :]
        first_byte = 0
        if inside:
            rest = rule.shape(self._config)[rule.stacked + 1 :]
            first_byte = inside[0].start * math.prod(rest) * block.dtype.itemsize
        for offsets in np.ndindex(*block.shape[: rule.stacked]):
            position = (i + part.start for i, part in zip(offsets, index, strict=False))
            name = rule.tensor_name(self._config, *position)
            self._file_of[name].write(name, first_byte, block[offsets])

    def finish(self, config_keys: Mapping[str, Any], companions: Mapping[str, Path]) -> None:
        """Writes the index if there are several files, and config.json last."""
        copy_companions(companions, self._folder)
        if len(self._shards) > 1:
            placed = {name: shard for shard, table in self._shards.items() for name in table}
            sizes = (
                math.prod(shape) * dtype.itemsize
                for table in self._shards.values()
                for shape, dtype in table.values()
            )
            index = {
                "metadata": {"total_size": sum(sizes)},
                "weight_map": dict(sorted(placed.items())),
            }
            (self._folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
        (self._folder / CONFIG_FILE).write_text(json.dumps(config_keys, indent=2) + "\n")

    @property
    def tensor_count(self) -> int:
        """Tensors in the files."""
        return len(self._file_of)


def _smallest_part(rule: TensorRule, config: ModelConfig) -> tuple[int, ...]:
    """Parts of a tensor must be contiguous: whole in every axis but its first."""
    shape = rule.shape(config)
    return tuple(1 if axis <= rule.stacked else size for axis, size in enumerate(shape))


def _tensors_in_order(
    config: ModelConfig, rules: Rules, dtypes: Mapping[LeafPath, np.dtype]
) -> TensorTable:
    """All tensors, those outside layers first, then layer by layer."""
    placed = [
        (rule.layer_of(position), order, position, rule)
        for order, rule in enumerate(rules)
        for position in rule.positions(config)
    ]
    placed.sort(key=lambda entry: entry[:3])
    return {
        rule.tensor_name(config, *position): (rule.tensor_shape(config), dtypes[rule.path])
        for _, _, position, rule in placed
    }


def _plan_shards(tensors: TensorTable, max_shard_bytes: int) -> dict[str, TensorTable]:
    """Which file holds which tensors. A tensor above the limit gets a file to itself."""
    shards: list[TensorTable] = [{}]
    filled = 0
    for name, (shape, dtype) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = (shape, dtype)
        filled += size
    if len(shards) == 1:
        return {SINGLE_FILE: shards[0]}
    total = len(shards)
    return {
        f"model-{number:05d}-of-{total:05d}.safetensors": shard
        for number, shard in enumerate(shards, 1)
    }
