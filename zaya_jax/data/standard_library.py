"""The Python standard library of the running interpreter: real text that needs no download."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from zaya_jax.data.config import DataError
from zaya_jax.data.text_files import ReadResult, read_folder

_SUFFIXES = frozenset({".py", ".txt", ".rst", ".md", ".html"})
_IGNORED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


def read_standard_library(max_bytes: int | None) -> ReadResult:
    """Read code and prose of `lib/python3.x`, installed packages left out.

    Raises:
      DataError: if the interpreter keeps its library in no folder (a zip archive, say).
    """
    root = Path(sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise DataError(
            f"source 'python_stdlib': {root} is not a folder; this Python keeps its library "
            "elsewhere. Set source to the path of a folder of text files"
        )
    return read_folder(root, max_bytes, suffixes=_SUFFIXES, ignored_folders=_IGNORED_FOLDERS)
