"""From the name of a source to training and validation documents."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.standard_library import read_standard_library
from zaya_jax.data.synthetic import read_synthetic
from zaya_jax.data.text_files import Document, ReadResult, read_folder, read_sections

# Named sources: each takes max_bytes. Anything else in `DataConfig.source` is a path.
READERS: dict[str, Callable[[int | None], ReadResult]] = {
    "python_stdlib": read_standard_library,
    "synthetic": read_synthetic,
}


@dataclasses.dataclass(frozen=True)
class SourceText:
    """The documents of one source, split; every document is in exactly one part."""

    name: str  # what validation records call it
    train: tuple[Document, ...]
    validation: tuple[Document, ...]
    skipped: int  # files met that were unreadable, binary or not UTF-8


def read_source(config: DataConfig) -> SourceText:
    """Read `config.source` and split it by the hash of each document's content.

    The split does not depend on names, places or the other documents, so a text stays on its
    side when files are added.

    Raises:
      DataError: if the source is unknown, or holds too little text to train and validate on.
    """
    if config.source in READERS:
        name, result = config.source, READERS[config.source](config.max_bytes)
    else:
        name, result = read_text(config.source, config.max_bytes)
    if not result.documents:
        found = f"; {result.skipped} files were unreadable or not UTF-8" if result.skipped else ""
        raise DataError(
            f"source {config.source!r} holds no text{found}. Set source to a text file, "
            f"a folder of UTF-8 text files, or one of: {', '.join(READERS)}"
        )
    train, validation = split(result.documents, config.validation_fraction)
    if not train or not validation:
        raise DataError(
            f"source {config.source!r} holds {len(result.documents)} document(s): too few to hold "
            "some out for validation. Add text, or raise max_bytes"
        )
    return SourceText(name, train, validation, result.skipped)


@runtime_checkable
class HasDigest(Protocol):
    """Anything that its content identifies."""

    @property
    def digest(self) -> str:
        """A hash of the content, hexadecimal."""
        ...


Content = TypeVar("Content", bound=HasDigest)


def split(
    documents: Sequence[Content], validation_fraction: float
) -> tuple[tuple[Content, ...], tuple[Content, ...]]:
    """Training and validation documents, by hash, each in the order given.

    Where chance leaves one side empty, the document nearest the border changes sides; one
    document alone stays in training.
    """
    shares = {document.digest: int(document.digest[:16], 16) / 2**64 for document in documents}
    ranked = sorted(shares, key=lambda digest: (shares[digest], digest))
    count = sum(share < validation_fraction for share in shares.values())
    count = min(max(count, 1), len(ranked) - 1)
    held_out = set(ranked[:count])
    train = tuple(document for document in documents if document.digest not in held_out)
    validation = tuple(document for document in documents if document.digest in held_out)
    return train, validation


def documents_fingerprint(documents: Sequence[HasDigest]) -> str:
    """SHA-256 over the contents of documents in their order, hexadecimal."""
    digests = "".join(document.digest for document in documents)
    return hashlib.sha256(digests.encode("ascii")).hexdigest()


def read_text(source: str, max_bytes: int | None) -> tuple[str, ReadResult]:
    """Name and documents of a text file or a folder of them.

    Raises:
      DataError: if there is no such file or folder.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve().name, read_folder(path, max_bytes)
    if path.is_file():
        return path.name, read_sections(path, max_bytes)
    raise DataError(
        f"source {source!r} is neither one of {', '.join(READERS)} "
        "nor the path of an existing file or folder"
    )
