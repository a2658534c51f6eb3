"""A policy in memory as a released folder, for engines that read weights from the disk.

Balancing biases are moved as `skip_bias` says, so that transformers and what is built on it choose
the same experts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.checkpoint.hub_writer import HubWriter
from zaya_jax.checkpoint.layouts import TRANSFORMERS
from zaya_jax.checkpoint.released_keys import hub_config_keys
from zaya_jax.checkpoint.skip_bias import shifted
from zaya_jax.checkpoint.tensor_rule import get_leaf
from zaya_jax.checkpoint.unfinished import finished_folder
from zaya_jax.config import ModelConfig

_SHARD_BYTES = 5_000_000_000
_ROOM_FOR_SMALL_FILES = 1 << 20
_BIASES = ("balancing", "biases")


def export_variables(config: ModelConfig, variables: dict[str, Any], target: Path) -> None:
    """Writes config.json and float32 tensors with the names of transformers' implementation.

    Args:
      config: architecture.
      variables: `{"params": …, "balancing": {"biases": …}}`, on any devices of this process.
      target: folder to make; appears when everything is on the disk.

    Raises:
      CheckpointError: when `target` exists or cannot be written.
      ConfigError: for a variant of the architecture that no release has.
    """
    rules = TRANSFORMERS.rules(config)
    leaves = {
        rule.path: np.asarray(get_leaf(variables, rule.path), dtype=np.float32) for rule in rules
    }
    leaves[_BIASES] = shifted(leaves[_BIASES])
    dtypes = {path: leaf.dtype for path, leaf in leaves.items()}
    needed = sum(leaf.nbytes for leaf in leaves.values())
    keys = hub_config_keys(config, TRANSFORMERS, {}, "float32")
    with finished_folder(target, needed + _ROOM_FOR_SMALL_FILES) as folder:
        writer = HubWriter(folder, config, rules, dtypes, _SHARD_BYTES)
        for path, leaf in leaves.items():
            writer.write(path, tuple(slice(0, size) for size in leaf.shape), leaf)
        writer.finish(keys, {})
