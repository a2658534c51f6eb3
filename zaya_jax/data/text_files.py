"""Text files as documents: robust reading in an order no file system can change."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

_SECTION_BYTES = 8_192  # aimed length of a section of a single file
_LEAST_SECTIONS = 20  # so that even a small file has something to hold out
_SNIFF_BYTES = 8_192  # enough to tell most binary files by a NUL byte


@dataclasses.dataclass(frozen=True)
class Document:
    """One text, never empty. `name` is for messages; the content alone decides the split."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text, hexadecimal."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


@dataclasses.dataclass(frozen=True)
class ReadResult:
    """Documents in a fixed order, and how many files could not be used."""

    documents: tuple[Document, ...]
    skipped: int  # unreadable, not UTF-8, or binary


def read_folder(
    root: Path,
    max_bytes: int | None,
    *,
    suffixes: Collection[str] | None = None,
    ignored_folders: Collection[str] = (),
) -> ReadResult:
    """Read the text files under `root`, each one document, without repeats.

    Files come in the order of a hash of their relative path, so a cut at `max_bytes` takes a
    sample of the whole tree and nothing behind the cut is read. Hidden files and folders are left
    out, and links to folders are not followed.

    Args:
      root: An existing folder.
      max_bytes: Reading stops with the file that reaches this total; None reads everything.
      suffixes: File name endings to keep, dot included; None keeps every file.
      ignored_folders: Folder names left out at any depth.
    """
    documents: list[Document] = []
    seen: set[str] = set()
    skipped = 0
    total = 0
    for relative in _ordered_files(root, suffixes, ignored_folders):
        text = _read_text(root / relative)
        if text is None:
            skipped += 1
            continue
        document = Document(relative, text)
        if not text.strip() or document.digest in seen:
            continue
        seen.add(document.digest)
        documents.append(document)
        total += len(text.encode("utf-8"))
        if max_bytes is not None and total >= max_bytes:
            break
    return ReadResult(tuple(documents), skipped)


def read_sections(path: Path, max_bytes: int | None) -> ReadResult:
    """Read one text file as sections of about 8 KiB cut at line ends, each one document.

    A single document could not be split into training and validation text; a small file gets
    shorter sections, at least twenty where it has as many lines. No more than `max_bytes` are read.
    """
    text = _read_text(path, max_bytes)
    if text is None:
        return ReadResult((), skipped=1)
    target = min(_SECTION_BYTES, max(1, len(text) // _LEAST_SECTIONS))
    documents: list[Document] = []
    seen: set[str] = set()
    lines: list[str] = []
    length = 0
    for line in [*text.splitlines(keepends=True), None]:
        if line is not None:
            lines.append(line)
            length += len(line)
        if lines and (line is None or length >= target):
            document = Document(f"{path.name}#{len(documents)}", "".join(lines))
            lines, length = [], 0
            if document.text.strip() and document.digest not in seen:
                seen.add(document.digest)
                documents.append(document)
    return ReadResult(tuple(documents), skipped=0)


def _ordered_files(
    root: Path, suffixes: Collection[str] | None, ignored_folders: Collection[str]
) -> list[str]:
    relative_paths: list[str] = []
    for folder, folder_names, file_names in os.walk(root):
        folder_names[:] = [
            name for name in folder_names if name not in ignored_folders and name[0] != "."
        ]
        for name in file_names:
            if name[0] == "." or (suffixes is not None and Path(name).suffix not in suffixes):
                continue
            relative_paths.append(Path(folder, name).relative_to(root).as_posix())
    # surrogateescape: a name that is not UTF-8 still has its bytes
    return sorted(
        relative_paths,
        key=lambda path: hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest(),
    )


def _read_text(path: Path, max_bytes: int | None = None) -> str | None:
    """The whole text, or its first `max_bytes` cut back to a line end; None if it is not text."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block for ever
            return None
        with path.open("rb") as file:
            head = file.read(_SNIFF_BYTES if max_bytes is None else min(_SNIFF_BYTES, max_bytes))
            if b"\0" in head:
                return None
            content = head + file.read(-1 if max_bytes is None else max_bytes - len(head))
            is_cut = bool(file.read(1))
    except OSError:
        return None
    if is_cut:
        line_end = content.rfind(b"\n")
        content = content[: line_end + 1]
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None
