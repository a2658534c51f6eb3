"""Orbax where every process keeps a folder of its own, on a disk that the others may not see.

Every process is its own primary host and writes each shard that it can address once, replicated or
not. These are the public parts that Orbax's managers for local checkpoints are made of
(`orbax.checkpoint.experimental.emergency`); those themselves are not for general use yet, and ask
for replicas along one axis of the mesh.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from zaya_jax.checkpoint.shards import Box, Held, box_of, whole_box

_PREFIX = "local"  # keeps its barriers apart from those of the durable tier


def open_private_manager(
    directory: Path, *, asynchronous: bool, arrays: tuple[str, ...], records: tuple[str, ...]
) -> ocp.CheckpointManager:
    """A manager of the calling process' own folder; all processes save at the same time.

    Args:
      directory: exists.
      asynchronous: whether files are written while training goes on.
      arrays: items that are trees of arrays, saved with `PyTreeSave`.
      records: items that are JSON.
    """
    alone = ocp.options.MultiprocessingOptions(primary_host=None, barrier_sync_key_prefix=_PREFIX)
    options = ocp.CheckpointManagerOptions(
        enable_async_checkpointing=asynchronous,
        cleanup_tmp_directories=True,
        multiprocessing_options=alone,
        # Processes would announce directories made meanwhile to each other, under one name.
        async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
    )
    array_handler = ocp.type_handlers.ArrayHandler(
        primary_host=None, replica_id=None, use_replica_parallel=False
    )
    types = ocp.type_handlers.create_type_handler_registry(
        (jax.Array, array_handler), (np.ndarray, ocp.type_handlers.NumpyHandler())
    )
    handlers: dict[str, Any] = {
        item: ocp.PyTreeCheckpointHandler(
            multiprocessing_options=alone, type_handler_registry=types
        )
        for item in arrays
    }
    handlers |= {item: ocp.JsonCheckpointHandler(multiprocessing_options=alone) for item in records}
    return ocp.CheckpointManager(directory, options=options, item_handlers=handlers)


def written_shards(tree: Any) -> dict[str, Held]:
    """What such a manager writes of every array of a tree in the calling process."""
    return {
        jax.tree_util.keystr(path): Held(leaf.shape, _written_boxes(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def needed_shards(template: Any) -> dict[str, set[Box]]:
    """What the calling process reads of every array of a tree with that sharding; all without."""
    return {
        jax.tree_util.keystr(path): _needed_boxes(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(template)
    }


def _written_boxes(leaf: Any) -> tuple[Box, ...]:
    if not isinstance(leaf, jax.Array):
        return (whole_box(leaf.shape),)
    # Orbax takes the shards that are as manieth copies as the first one is.
    shards = leaf.addressable_shards
    mine = (shard for shard in shards if shard.replica_id == shards[0].replica_id)
    return tuple(box_of(shard.index, leaf.shape) for shard in mine)


def _needed_boxes(leaf: Any) -> set[Box]:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return {whole_box(leaf.shape)}
    indices = sharding.addressable_devices_indices_map(leaf.shape).values()
    return {box_of(index, leaf.shape) for index in indices}
