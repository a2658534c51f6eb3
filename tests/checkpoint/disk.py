"""A real file system that fills up."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    """Mounts a file system of that size on a new folder; skips the test where that needs root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount command: {error}")
    if done.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
