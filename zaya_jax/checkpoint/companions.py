"""Files that travel along with a model's tensors: tokenizer, chat template, generation settings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from zaya_jax.checkpoint.manager import CheckpointError

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
    """A file of a downloaded folder, which must really lie in it.

    Raises:
      CheckpointError: when it is missing, or lies elsewhere by its name or through a link.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(
            f"{path} leads out of the folder, to {path.resolve()}; copy the model's files into one "
            "folder (hf download --local-dir, or cp -rL)"
        )
    if not path.is_file():
        raise CheckpointError(f"{path} is missing or is no file")
    return path


def find_companions(folder: Path) -> dict[str, Path]:
    """The files of a folder that travel along, by name."""
    found = {path.name for pattern in _PATTERNS for path in folder.glob(pattern)}
    return {
        name: inside_folder(folder, name) for name in sorted(found) if (folder / name).is_file()
    }


def copy_companions(companions: Mapping[str, Path], folder: Path) -> None:
    """Copies them into a folder, byte for byte."""
    for name, path in companions.items():
        shutil.copyfile(path, folder / name)
