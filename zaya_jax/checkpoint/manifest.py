"""A list of a checkpoint's files with their checksums, by which damage is found.

The manifest is the last file written into a finished checkpoint and the first one deleted from an
old one. So a checkpoint without a manifest is unfinished, and one whose files differ from its
manifest is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

MANIFEST = "manifest.json"


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


def find_damage(directory: Path) -> str | None:
    """The first difference between a finished checkpoint and its manifest, or None."""
    try:
        expected = json.loads((directory / MANIFEST).read_text())
        described = {name: (entry["bytes"], entry["sha256"]) for name, entry in expected.items()}
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    if not described:
        return f"{MANIFEST} lists no files"
    for name, (size, checksum) in described.items():
        try:
            found = _describe(directory / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if found["bytes"] != size:
            return f"{name} has {found['bytes']} bytes instead of {size}"
        if found["sha256"] != checksum:
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
