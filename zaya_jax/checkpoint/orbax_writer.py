"""Writes the variables tree leaf by leaf, part by part, in the format that Orbax reads.

Orbax itself wants every array whole in memory, and an expert stack takes 10.7 GB. Its format on
disk is one Zarr array a leaf and a JSON description of the tree; both are written here. Chunks are
not compressed: weights in bfloat16 shrink by a fifth at a tenth of the speed. So a chunk's file is
its bytes, and its checksum is taken on the way.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.checkpoint.manifest import MANIFEST
from zaya_jax.checkpoint.orbax_reader import METADATA, TREE_METADATA, VARIABLES, array_folder
from zaya_jax.checkpoint.raw_chunks import ARRAY_METADATA, array_description, chunk_name
from zaya_jax.checkpoint.reader import BLOCK_BYTES, Index, block_shape, blocks
from zaya_jax.checkpoint.safetensors_file import as_bytes
from zaya_jax.checkpoint.tensor_rule import LeafPath

ITEM_METADATA = "_CHECKPOINT_METADATA"  # Orbax's description of an item of a checkpoint
_STANDARD = "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
_JSON = "orbax.checkpoint._src.handlers.json_checkpoint_handler.JsonCheckpointHandler"
_DICTIONARY_KEY = 2  # Orbax's number for keys of dictionaries


class OrbaxWriter:
    """A checkpoint being written into an empty folder; parts may come from several threads."""

    def __init__(
        self, folder: Path, arrays: Mapping[LeafPath, tuple[tuple[int, ...], np.dtype]]
    ) -> None:
        """Declares every array by shape and dtype."""
        self._folder = folder
        self._lock = threading.Lock()
        self._manifest: dict[str, dict[str, int | str]] = {}
        self._arrays = dict(arrays)
        self.chunks = {
            path: block_shape(shape, dtype.itemsize, BLOCK_BYTES)
            for path, (shape, dtype) in arrays.items()
        }
        (folder / VARIABLES).mkdir()
        for path, (shape, dtype) in arrays.items():
            description = array_description(shape, self.chunks[path], dtype)
            (folder / array_folder(path)).mkdir()
            self._write_json(f"{array_folder(path)}/{ARRAY_METADATA}", description)

    def write(self, path: LeafPath, index: Index, block: np.ndarray) -> None:
        """Writes a part that is made of whole chunks."""
        chunk = self.chunks[path]
        for part in blocks(block.shape, chunk):
            data = block[part]
            missing = [(0, step - size) for step, size in zip(chunk, data.shape, strict=True)]
            if any(after for _, after in missing):  # chunks at the end are stored at full size
                data = np.pad(data, missing)
            starts = (whole.start + piece.start for whole, piece in zip(index, part, strict=True))
            numbers = tuple(start // step for start, step in zip(starts, chunk, strict=True))
            self._write_file(f"{array_folder(path)}/{chunk_name(numbers)}", as_bytes(data))

    def add_file(self, name: str, source: Path) -> None:
        """Copies a file that travels along."""
        (self._folder / name).parent.mkdir(exist_ok=True)
        self._write_file(name, source.read_bytes())

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Writes all descriptions, the manifest last."""
        tree = {
            str(path): {
                "key_metadata": [{"key": key, "key_type": _DICTIONARY_KEY} for key in path],
                "value_metadata": {
                    "value_type": "jax.Array",
                    "skip_deserialize": False,
                    "write_shape": list(shape),
                },
            }
            for path, (shape, _) in self._arrays.items()
        }
        description = {
            "tree_metadata": tree,
            "use_ocdbt": False,
            "use_zarr3": False,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": None,
        }
        self._write_json(f"{VARIABLES}/{TREE_METADATA}", description)
        self._write_json(f"{VARIABLES}/{ITEM_METADATA}", {"item_handlers": _STANDARD})
        (self._folder / METADATA).mkdir()
        self._write_json(f"{METADATA}/metadata", metadata)
        self._write_json(f"{METADATA}/{ITEM_METADATA}", {"item_handlers": _JSON})
        text = json.dumps(dict(sorted(self._manifest.items())), indent=1)
        _write_new(self._folder / MANIFEST, text.encode())

    def _write_json(self, name: str, value: Any) -> None:
        self._write_file(name, json.dumps(value).encode())

    def _write_file(self, name: str, data: memoryview | bytes) -> None:
        _write_new(self._folder / name, data)
        entry: dict[str, int | str] = {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        with self._lock:
            self._manifest[name] = entry


def _write_new(path: Path, data: memoryview | bytes) -> None:
    with path.open("xb", buffering=0) as file:
        if len(data):
            os.posix_fallocate(file.fileno(), 0, len(data))  # writing is several times quicker
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        # Nobody needs the bytes soon: the system begins to bring them to the disk.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
