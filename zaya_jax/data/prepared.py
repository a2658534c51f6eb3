"""Prepared corpora: examples tokenised and trimmed beforehand, read one by one from disk.

    DIR/manifest.json                tokenizer, window, counts, and size and hash of every shard
    DIR/train-00000.arrayrecord      one example a record, in the order of the source
    DIR/train-00000.lengths.npy      ids of each example, so that packing reads no record
    DIR/validation-00000…            the held-out part

A record is the ids as little-endian int32, then for each id a byte that is 1 if it is to be learnt.
`python -m zaya_jax.data.prepare` writes such a folder; a source may be one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.row_files import optional_library
from zaya_jax.data.tokenizer import Tokenizer

MANIFEST = "manifest.json"
_FORMAT = 1
_ID_AND_FLAG = 5  # bytes of a token in a record


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of examples, as the manifest lists it."""

    name: str  # of the .arrayrecord file
    examples: int
    tokens: int
    bytes: int
    sha256: str


class PreparedExamples:
    """Examples of one part of a prepared folder; reads a record when it is asked for."""

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self._paths = [folder / shard.name for shard in shards]
        self._readers: dict[int, Any] = {}
        self._lock = threading.Lock()  # readers are not made for several threads at a time
        sizes = [
            _load_lengths(path, shard) for path, shard in zip(self._paths, shards, strict=True)
        ]
        self._starts = np.concatenate([[0], np.cumsum([s.examples for s in shards])]).astype(int)
        self._sizes = np.concatenate([np.zeros(0, np.int64), *sizes])

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def lengths(self) -> Int64[np.ndarray, " examples"]:
        """Positions each example fills."""
        return self._sizes - 1

    def example(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and learnt flags of one example.

        Raises:
          DataError: when the shard has vanished or is damaged.
        """
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        path = self._paths[shard]
        try:
            with self._lock:
                [record] = self._reader(shard).read([index - int(self._starts[shard])])
        except (RuntimeError, IndexError, ValueError, OSError) as error:
            raise DataError(f"shard '{path}' cannot be read: {error}; prepare it again") from error
        ids, learnt = decode(record)
        if ids.size != self._sizes[index]:
            raise DataError(f"shard '{path}' does not fit its lengths file; prepare it again")
        return ids, learnt

    def _reader(self, shard: int) -> Any:
        if shard not in self._readers:
            path = str(self._paths[shard])
            module = optional_library("array_record.python.array_record_module", path)
            self._readers[shard] = module.ArrayRecordReader(path)
        return self._readers[shard]


def encode(ids: np.ndarray, learnt: np.ndarray) -> bytes:
    """An example as a record."""
    return ids.astype("<i4").tobytes() + learnt.astype(np.uint8).tobytes()


def decode(record: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `encode`: int32 ids and uint8 flags."""
    count = len(record) // _ID_AND_FLAG
    ids = np.frombuffer(record, "<i4", count).astype(np.int32)
    return ids, np.frombuffer(record, np.uint8, count, 4 * count)


def is_prepared(source: str) -> bool:
    """Whether the path is a prepared folder."""
    return (Path(source).expanduser() / MANIFEST).is_file()


def read_manifest(source: str, config: DataConfig, tokenizer: Tokenizer) -> Mapping[str, Any]:
    """The manifest, found to fit this run.

    Raises:
      DataError: when it is damaged, belongs to another tokenizer or window, or a shard is missing
        or has another size.
    """
    folder = Path(source).expanduser()
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["format"] != _FORMAT:
            raise ValueError(f"format {manifest['format']!r}, this version reads {_FORMAT}")
        shards = [Shard(**shard) for part in manifest["shards"].values() for shard in part]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"manifest '{folder / MANIFEST}' cannot be used: {error}") from error
    for name, wanted in describe(config, tokenizer).items():
        if manifest[name] != wanted:
            raise DataError(
                f"prepared data {source!r} was made with {name}={manifest[name]!r}, this run has "
                f"{wanted!r}; prepare it again or change the run"
            )
    for shard in shards:
        path = folder / shard.name
        if not path.is_file() or path.stat().st_size != shard.bytes:
            found = f"{path.stat().st_size:,} bytes" if path.is_file() else "nothing"
            raise DataError(
                f"shard '{path}': the manifest lists {shard.bytes:,} bytes, there is {found}; "
                "copy it again or prepare it again"
            )
    checked: Mapping[str, Any] = manifest
    return checked


def describe(config: DataConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """What prepared data must have in common with the run that reads it."""
    return {
        "tokenizer": tokenizer.fingerprint,
        "sequence_length": config.sequence_length,
        "thinking": config.thinking,
    }


def part_of(source: str, manifest: Mapping[str, Any], part: str) -> PreparedExamples:
    """The "train" or the "validation" part."""
    folder = Path(source).expanduser()
    return PreparedExamples(folder, [Shard(**shard) for shard in manifest["shards"][part]])


def write_manifest(
    folder: Path, description: Mapping[str, Any], shards: Mapping[str, list[Shard]], **facts: Any
) -> None:
    """Written last and at once: a folder without it is not finished."""
    content = {
        "format": _FORMAT,
        **description,
        **facts,
        "shards": {
            part: [dataclasses.asdict(s) for s in listed] for part, listed in shards.items()
        },
    }
    temporary = folder / (MANIFEST + ".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.rename(folder / MANIFEST)


def manifest_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Identifies the training part: a hash of its shards' hashes."""
    hashes = "".join(shard["sha256"] for shard in manifest["shards"]["train"])
    return hashlib.sha256(hashes.encode()).hexdigest()


def _load_lengths(path: Path, shard: Shard) -> np.ndarray:
    file = lengths_file(path)
    try:
        lengths = np.load(file)
    except (OSError, ValueError) as error:
        raise DataError(f"file '{file}' cannot be read: {error}; prepare it again") from error
    if lengths.shape != (shard.examples,) or int(lengths.sum()) != shard.tokens:
        raise DataError(f"file '{file}' does not fit the manifest; prepare it again")
    return lengths.astype(np.int64)


def lengths_file(path: Path) -> Path:
    """Where the lengths of a shard lie."""
    return path.with_suffix(".lengths.npy")
