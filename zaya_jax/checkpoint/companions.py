"""Files that travel along with a model's tensors: tokenizer, chat template, generation settings."""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Mapping
from pathlib import Path

from zaya_jax.checkpoint.error import CheckpointError

_PATTERNS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
    "LICENSE*",
)


def inside_folder(folder: Path, name: str) -> Path:
    """A file of a downloaded folder, which must really lie in it, or in the hub's cache around it.

    Raises:
      CheckpointError: when it is missing, or lies elsewhere by its name or through a link.
    """
    path = folder / name
    try:
        real, root = path.resolve(), folder.resolve()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, NUL in a name
        raise CheckpointError(f"{folder}: file {name!a} cannot be used: {error}") from None
    if not real.is_relative_to(root) and real.parent != _cache_blobs(root):
        raise CheckpointError(
            f"{path} leads out of the folder, to {real}; copy the model's files into one "
            "folder (hf download --local-dir, or cp -rL)"
        )
    if not is_file:
        where = " or leads nowhere" if path.is_symlink() else ""
        raise CheckpointError(f"{path} is missing or is no file{where}")
    return path


def _cache_blobs(snapshot: Path) -> Path | None:
    """Where the hub's own cache keeps the files that a snapshot of a repository links to.

    MODEL/snapshots/REVISION/model.safetensors -> MODEL/blobs/HASH
    """
    model = snapshot.parent.parent
    is_cache = snapshot.parent.name == "snapshots" and model.name.startswith("models--")
    return model / "blobs" if is_cache else None


def find_companions(folder: Path) -> dict[str, Path]:
    """The files of a folder that travel along, by name.

    Raises:
      CheckpointError: for a link that leads nowhere or out of the folder.
    """
    found = (
        path.name
        for path in sorted(folder.iterdir())
        if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _PATTERNS)
    )
    return {name: inside_folder(folder, name) for name in found if not (folder / name).is_dir()}


def copy_companions(companions: Mapping[str, Path], folder: Path) -> None:
    """Copies them into a folder, byte for byte."""
    for name, path in companions.items():
        shutil.copyfile(path, folder / name)
