"""A list of a checkpoint's files with their checksums, by which damage is found.

The manifest is the last file written into a finished checkpoint and the first one deleted from an
old one. So a checkpoint without a manifest is unfinished, and one whose files differ from its
manifest is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

from zaya_jax.checkpoint.companions import inside_folder
from zaya_jax.checkpoint.error import CheckpointError, reason_of
from zaya_jax.checkpoint.strict_json import read_object

MANIFEST = "manifest.json"

# Path below the checkpoint -> {"bytes": …, "sha256": …}.
Manifest = dict[str, dict[str, Any]]


def write_manifest(directory: Path) -> None:
    """Checksums every file below `directory`; the manifest appears whole or not at all."""
    files = {name: _describe(directory / name) for name in _files(directory)}
    temporary = directory / (MANIFEST + ".tmp")
    with temporary.open("w") as file:
        json.dump(files, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(directory / MANIFEST)


def is_finished(directory: Path) -> bool:
    """Whether the checkpoint was completely written."""
    return (directory / MANIFEST).is_file()


def saved_steps(directory: Path) -> list[int]:
    """Steps that have a checkpoint folder, in ascending order; finished or not."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def read_manifest(directory: Path) -> Manifest:
    """What every file of a finished checkpoint was when it was written.

    Raises:
      CheckpointError: when it is no list of files below the checkpoint.
    """
    file = directory / MANIFEST
    manifest = read_object(file)
    if not manifest:
        raise CheckpointError(f"{file} lists no files")
    for name, entry in manifest.items():
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name:
            raise CheckpointError(f"{file} lists {name!a}, which is no path below the checkpoint")
        if (
            not isinstance(entry, dict)
            or type(entry.get("bytes")) is not int
            or not isinstance(entry.get("sha256"), str)
        ):
            raise CheckpointError(f"{file} must give bytes and sha256 of every file, of {name!a}")
    return manifest


def find_damage(directory: Path) -> str | None:
    """The first difference between a finished checkpoint and its manifest, or None."""
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return str(error)
    return next(filter(None, (file_damage(directory, manifest, name) for name in manifest)), None)


def file_damage(directory: Path, manifest: Manifest, name: str) -> str | None:
    """How a listed file differs from the manifest; None when it does not."""
    try:
        found = _describe(inside_folder(directory, name))
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{name} cannot be read ({reason_of(error)})"
    entry = manifest[name]
    if found["bytes"] != entry["bytes"]:
        return f"{name} has {found['bytes']} bytes instead of {entry['bytes']}"
    if found["sha256"] != entry["sha256"]:
        return f"{name} has changed since it was written (its checksum differs)"
    return None


def _files(directory: Path) -> list[str]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(
        str(path.relative_to(directory)) for path in found if not path.name.startswith(MANIFEST)
    )


def _describe(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": checksum}
