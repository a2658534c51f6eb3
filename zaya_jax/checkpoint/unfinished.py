"""Folders that appear under their name only when they are complete."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from zaya_jax.checkpoint.manager import CheckpointError

_SUFFIX = ".unfinished"


def is_unfinished(folder: Path) -> bool:
    """Whether a folder is still being written, or never was finished."""
    return folder.absolute().name.endswith(_SUFFIX)


@contextlib.contextmanager
def finished_folder(target: Path, needed_bytes: int) -> Iterator[Path]:
    """A new folder to write into; renamed to `target` when the block ends well, else removed.

    A killed process leaves `target.unfinished`, which the next attempt clears away.

    Raises:
      CheckpointError: when `target` exists, another process is writing it, or the disk lacks room.
    """
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} exists already; choose another name or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = target.with_name(target.name + _SUFFIX)
    folder.mkdir(exist_ok=True)
    with _only_writer(folder):
        for leftover in folder.iterdir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        free = shutil.disk_usage(folder).free
        try:
            if free < needed_bytes:
                raise CheckpointError(
                    f"{target} needs {needed_bytes / 1e9:.2f} GB, its disk has {free / 1e9:.2f} GB "
                    "free; make room or choose another place"
                )
            yield folder
            _sync_folders(folder)
            folder.rename(target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    _sync(target.parent)


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Holds the folder; the system lets go of it when the process ends in whatever way."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise CheckpointError(f"another process is writing {folder}; wait for it") from None
    try:
        yield
    finally:
        os.close(handle)


def _sync_folders(folder: Path) -> None:
    for path, _, files in os.walk(folder):
        for name in files:
            _sync(Path(path) / name)
        _sync(Path(path))


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
