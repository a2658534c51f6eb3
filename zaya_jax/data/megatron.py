"""Megatron's indexed datasets: `NAME.bin` holds token ids, `NAME.idx` says where each text lies.

    "MMIDIDX\\0\\0"  version=1 (int64)  dtype code (uint8)  sequences (int64)  documents (int64)
    lengths int32 [sequences]   byte offsets int64 [sequences]   document bounds int64 [documents]

All little-endian. Source: Megatron-LM, `indexed_dataset.py` (the format, not the code).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from zaya_jax.data.config import DataError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


def read_megatron(path: str) -> Iterator[Int32[np.ndarray, " tokens"]]:
    """Token ids of each document, in order.

    Args:
      path: of the `.bin` or the `.idx` file.

    Raises:
      DataError: when a file is missing, of another format, or shorter than the index says.
    """
    index_path, data_path = Path(path).with_suffix(".idx"), Path(path).with_suffix(".bin")
    for file in (index_path, data_path):
        if not file.is_file():
            raise DataError(
                f"file '{file}' does not exist; a Megatron dataset is a .bin and a .idx"
            )
    index = index_path.read_bytes()
    if len(index) < _HEADER.size or index[:9] != _MAGIC:
        raise DataError(f"file '{index_path}' is no Megatron index (its first bytes differ)")
    _, version, code, sequences, documents = _HEADER.unpack_from(index)
    if version != 1 or _DTYPES.get(code, "f")[-2] not in "iu":
        raise DataError(
            f"file '{index_path}' has version {version} and type code {code}; read are version 1 "
            "and integers"
        )
    needed = _HEADER.size + 12 * sequences + 8 * documents
    if len(index) < needed:
        raise DataError(f"file '{index_path}' has {len(index)} bytes, its header wants {needed}")
    lengths = np.frombuffer(index, "<i4", sequences, _HEADER.size)
    offsets = np.frombuffer(index, "<i8", sequences, _HEADER.size + 4 * sequences)
    bounds = np.frombuffer(index, "<i8", documents, _HEADER.size + 12 * sequences)
    dtype = np.dtype(_DTYPES[code])
    content = np.memmap(data_path, np.uint8, "r") if data_path.stat().st_size else np.zeros(0, "u1")
    if (
        sequences
        and int((offsets + lengths.astype(np.int64) * dtype.itemsize).max()) > content.size
    ):
        raise DataError(f"file '{data_path}' is shorter than '{index_path}' says; copy it again")
    for first, last in itertools.pairwise(bounds):
        parts = [
            content[offset : offset + int(length) * dtype.itemsize].view(dtype).astype(np.int32)
            for offset, length in zip(offsets[first:last], lengths[first:last], strict=True)
        ]
        yield np.concatenate(parts) if parts else np.zeros(0, np.int32)
