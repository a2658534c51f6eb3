"""Opens a checkpoint of any layout."""

from __future__ import annotations

from pathlib import Path

from zaya_jax.checkpoint.hub_config import CONFIG_FILE
from zaya_jax.checkpoint.hub_reader import HubReader
from zaya_jax.checkpoint.manager import CheckpointError, saved_steps
from zaya_jax.checkpoint.orbax_reader import VARIABLES, OrbaxReader, find_checkpoint
from zaya_jax.checkpoint.reader import Reader
from zaya_jax.checkpoint.unfinished import is_unfinished


def open_checkpoint(path: str | Path) -> Reader:
    """Opens a folder downloaded from the hub, a converted checkpoint, a run or a step of a run.

    Raises:
      CheckpointError: when it is none of them, or is not what its description says.
      ConfigError: when its config.json describes no model of this family.
    """
    folder = Path(path)
    return HubReader(folder) if is_released(folder) else OrbaxReader(find_checkpoint(folder))


def is_released(folder: Path) -> bool:
    """Whether a folder is in a released layout, rather than a checkpoint or run of this project.

    Raises:
      CheckpointError: when there is no such folder, or a conversion into it was broken off.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder")
    if is_unfinished(folder):
        raise CheckpointError(f"{folder} is the remains of a conversion that was broken off")
    is_ours = (folder / VARIABLES).is_dir() or (folder / "checkpoints").is_dir()
    if is_ours or saved_steps(folder):
        return False
    return (folder / CONFIG_FILE).exists() or any(folder.glob("*.safetensors"))
