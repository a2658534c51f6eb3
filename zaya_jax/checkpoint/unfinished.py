"""Folders that appear under their name only when they are complete."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from zaya_jax.checkpoint.error import CheckpointError, reason_of
from zaya_jax.checkpoint.manifest import MANIFEST

_SUFFIX = ".unfinished"
# A file in folders that may be cleared away; manifests leave out names like it.
_MARK = f"{MANIFEST}.unfinished"


def is_unfinished(folder: Path) -> bool:
    """Whether a folder is still being written, or never was finished."""
    return folder.absolute().name.endswith(_SUFFIX)


def check_target(target: str | Path, source: Path | None = None) -> Path:
    """Where a finished folder may appear, as an absolute path; changes nothing on the disk.

    Raises:
      CheckpointError: when something is there, when the name is none, or when it lies in `source`.
    """
    path = Path(target)
    try:
        folder = path.absolute().parent.resolve() / path.name
        read_only = source.resolve() if source is not None and source.is_dir() else None
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be made: {error}; choose another place") from None
    if not str(target) or path.name in ("", ".."):
        raise CheckpointError(f"{str(target)!r} names no new folder; write one, as in ./converted")
    if is_unfinished(folder):
        raise CheckpointError(f"{path}: names in {_SUFFIX} are for broken-off work; choose another")
    if folder.is_symlink():
        raise CheckpointError(f"{path} is a link; give the place itself, or remove the link")
    if folder.exists() and (not folder.is_dir() or folder.is_mount() or any(folder.iterdir())):
        raise CheckpointError(f"{path} exists already; choose another name or remove it")
    if read_only is not None and folder.is_relative_to(read_only):
        raise CheckpointError(
            f"{path} lies inside {source}, which is only read; choose another place"
        )
    ancestor = _nearest(folder.parent)
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"{path} cannot be made: {ancestor} is no folder that you may write to"
        )
    unfinished = folder.with_name(folder.name + _SUFFIX)
    if os.path.lexists(unfinished) and not _is_ours(unfinished):
        raise CheckpointError(
            f"{unfinished} is in the way and was not left by a conversion; move it, or choose "
            "another name"
        )
    return folder


@contextlib.contextmanager
def finished_folder(target: Path, needed_bytes: int) -> Iterator[Path]:
    """A new folder to write into; renamed to `target` when the block ends well, else removed.

    A killed process leaves `target.unfinished`, which the next attempt clears away.

    Raises:
      CheckpointError: when `check_target` refuses `target`, another process is writing it, the disk
        lacks room, or a file cannot be written.
    """
    target = check_target(target)
    folder = target.with_name(target.name + _SUFFIX)
    try:
        with _new_parents(folder), _only_writer(folder):
            try:
                _check_room(folder, needed_bytes)
                yield folder
                _sync_folders(folder)
                folder.rename(target)
            except BaseException:
                _remove(folder)
                raise
            (target / _MARK).unlink()
            _sync(target)
            _sync(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"{target} cannot be written: {reason_of(error)}; make room, mend the limit "
            "(ulimit -a), or choose another place"
        ) from error


def _check_room(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise CheckpointError(
            f"{folder.with_suffix('')} needs {needed_bytes / 1e9:.2f} GB, its disk has "
            f"{free / 1e9:.2f} GB free; make room or choose another place"
        )


@contextlib.contextmanager
def _new_parents(folder: Path) -> Iterator[None]:
    """Makes the folders above; those that are new go away again when the block fails."""
    nearest = _nearest(folder.parent)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for parent in folder.parents:
            if parent == nearest:
                break
            with contextlib.suppress(OSError):  # somebody else has put something there
                parent.rmdir()
        raise


def _nearest(folder: Path) -> Path:
    """The folder itself, or the first one above that exists."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _is_ours(folder: Path) -> bool:
    """Whether a folder was made here: it bears the mark, or is so new that it is empty."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return (folder / _MARK).is_file() or not any(folder.iterdir())


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Makes the folder, or takes over what is left of it; nobody else does so at the same time.

    The system lets go of it when the process ends in whatever way.
    """
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"another process is writing {folder}; wait for it") from None
        if not _is_ours(folder):
            raise CheckpointError(f"{folder} was not left by a conversion; move it away")
        (folder / _MARK).touch()
        _clear(folder)
        yield
    finally:
        os.close(handle)


def _clear(folder: Path) -> None:
    """Removes everything but the mark."""
    for leftover in folder.iterdir():
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        elif leftover.name != _MARK:
            leftover.unlink()


def _remove(folder: Path) -> None:
    """As far as possible; the mark goes last, so that what stays is known for what it is."""
    with contextlib.suppress(OSError):
        _clear(folder)
        (folder / _MARK).unlink()
        folder.rmdir()


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
