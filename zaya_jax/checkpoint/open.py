"""Opens a checkpoint of any layout."""

from __future__ import annotations

import os
from pathlib import Path

from zaya_jax.checkpoint.adapter_reader import AdapterReader, adapter_settings, base_of
from zaya_jax.checkpoint.error import CheckpointError, reason_of
from zaya_jax.checkpoint.hub_config import CONFIG_FILE
from zaya_jax.checkpoint.hub_reader import INDEX_FILE, HubReader
from zaya_jax.checkpoint.manifest import is_finished, saved_steps
from zaya_jax.checkpoint.orbax_reader import VARIABLES, OrbaxReader, find_checkpoint
from zaya_jax.checkpoint.reader import Reader
from zaya_jax.checkpoint.unfinished import is_unfinished

_LONGEST_CHAIN = 16  # LoRA runs, each begun from the one before


def open_checkpoint(path: str | Path) -> Reader:
    """Opens a folder downloaded from the hub, a converted checkpoint, a run or a step of a run.

    Raises:
      CheckpointError: when it is none of them, or is not what its description says.
      ConfigError: when its config.json describes no model of this family.
    """
    folder = Path(path)
    try:
        return _open(folder, _LONGEST_CHAIN)
    except (OSError, RuntimeError) as error:  # no permission, a link to itself, a failing disk
        raise CheckpointError(f"{folder} cannot be read: {reason_of(error)}") from error


def _open(folder: Path, links: int) -> Reader:
    if is_released(folder):
        return HubReader(folder)
    checkpoint = find_checkpoint(folder)
    settings = adapter_settings(checkpoint) if is_finished(checkpoint) else None
    if settings is None:
        return OrbaxReader(checkpoint)
    if not links:
        raise CheckpointError(f"{folder}: more than {_LONGEST_CHAIN} LoRA runs upon one another")
    return AdapterReader(checkpoint, settings, _open(base_of(checkpoint), links - 1))


def open_intact(path: str | Path) -> Reader:
    """Opens a checkpoint as `open_checkpoint` does, and compares its files with their checksums.

    Raises:
      CheckpointError: also when a file has changed since it was written. Chunks that a conversion
        wrote are compared when they are read.
    """
    reader = open_checkpoint(path)
    damage = reader.find_damage() if isinstance(reader, OrbaxReader) else None
    if damage is not None:
        raise CheckpointError(f"{reader.path} is damaged: {damage}; choose another checkpoint")
    return reader


def is_released(folder: Path) -> bool:
    """Whether a folder is in a released layout, rather than a checkpoint or run of this project.

    Raises:
      CheckpointError: when there is no such folder, or a conversion into it was broken off.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder")
    if is_unfinished(folder):
        raise CheckpointError(f"{folder} is the remains of a conversion that was broken off")
    if (folder / VARIABLES).is_dir():
        return False
    if any(folder.glob("*.safetensors")) or os.path.lexists(folder / INDEX_FILE):
        return True
    is_run = (folder / "checkpoints").is_dir() or saved_steps(folder)
    return not is_run and os.path.lexists(folder / CONFIG_FILE)
