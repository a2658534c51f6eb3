"""The folder of a run: it can be written to, and one run at a time does.

A second run in the same folder would write between the lines of the first one's metrics and over
its checkpoints. The system holds the lock for the process and lets go of it when the process ends,
however that happens, so that a killed run is in nobody's way.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from zaya_jax.config import ConfigError

LOCK_FILE = "lock"  # in the folder, while a run has it; says whose it is

# What file systems that keep no locks answer.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


def folder_option(text: str) -> Path:
    """For a command's `--workdir`. An empty one would be the folder that one is in.

    Raises:
      argparse.ArgumentTypeError: for an empty text, as of a shell's variable that is not set.
    """
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a folder, . for the one you are in")
    return Path(text)


def make_workdir(workdir: Path) -> None:
    """Makes the folder if it is missing, and a file in it that is gone again.

    Raises:
      ConfigError: when one of them cannot be made.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=workdir):
            pass
    except FileExistsError as error:
        raise ConfigError(
            f"--workdir={str(workdir)!r} is a file, or a link that leads nowhere; give a folder"
        ) from error
    except OSError as error:
        where = "" if error.filename in (None, str(workdir)) else f" ({error.filename})"
        raise ConfigError(
            f"--workdir={str(workdir)!r} cannot be written to: {error.strerror}{where}; give a "
            "folder that you may make files in"
        ) from error


@contextlib.contextmanager
def claimed(workdir: Path, lock_file: str = LOCK_FILE) -> Iterator[None]:
    """Makes the folder and keeps every other run out of it; of several processes one is to call it.

    What is still empty at the end, because the run was refused, is removed again.

    Args:
      workdir: the folder.
      lock_file: a name of its own for whoever watches over runs in the folder.

    Raises:
      ConfigError: when the folder cannot be written to, or another run has it.
    """
    # Not Path.exists, which fails for a name that is too long.
    missing = [folder for folder in (workdir, *workdir.parents) if not os.path.exists(folder)]
    make_workdir(workdir)
    path = workdir / lock_file
    lock = _locked(path, workdir)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.close()
        with contextlib.suppress(OSError):  # of the first that holds something
            for folder in missing:
                folder.rmdir()


def check_free(workdir: Path) -> None:
    """Refuses a folder that a run has, without claiming it.

    Raises:
      ConfigError: when a run has it.
    """
    path = workdir / LOCK_FILE
    if path.exists():
        _locked(path, workdir).close()


def _locked(path: Path, workdir: Path) -> TextIOWrapper:
    """The open lock file, with what others are to know of its holder."""
    while True:
        try:
            lock = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be opened: {error.strerror}; it marks the folder as in use: remove "
                "it if no run is in there"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder, _, command = lock.read().strip().partition(" (")
            lock.close()
            raise ConfigError(
                f"--workdir={str(workdir)!r} is in use by {holder or 'another process'}; wait "
                "until it ends, stop it, or give another folder" + (command and f" ({command}")
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            print(
                f"note: the file system of {workdir} keeps no locks ({error.strerror}); start no "
                "second run in this folder",
                file=sys.stderr,
            )
        if _is_still(path, lock):
            break
        lock.close()  # its holder ended, and removed it, between our two calls
    lock.truncate(0)
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    lock.write(f"process {os.getpid()} on {socket.gethostname()} since {since} ({command})\n")
    lock.flush()
    return lock


def _is_still(path: Path, lock: TextIOWrapper) -> bool:
    """Whether the open file is the one that others find."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False
