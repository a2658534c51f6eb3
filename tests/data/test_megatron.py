"""Megatron's indexed datasets, written here byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from zaya_jax.data.config import DataError
from zaya_jax.data.megatron import read_megatron


def write_megatron(folder: Path, documents: list[list[list[int]]], code: int, dtype: str) -> Path:
    """Documents of sequences of ids."""
    sequences = [sequence for document in documents for sequence in document]
    width = np.dtype(dtype).itemsize
    sizes = np.asarray([len(s) for s in sequences], "<i4")
    offsets = np.concatenate([[0], np.cumsum(sizes[:-1], dtype="<i8") * width]).astype("<i8")
    bounds = np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype("<i8")
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(bounds))
    index = folder / "data.idx"
    index.write_bytes(header + sizes.tobytes() + offsets.tobytes() + bounds.tobytes())
    tokens = np.concatenate([np.asarray(s, dtype) for s in sequences])
    (folder / "data.bin").write_bytes(tokens.tobytes())
    return index


@pytest.mark.parametrize(("code", "dtype"), [(8, "<u2"), (4, "<i4"), (5, "<i8")])
def test_documents_come_back_whole(tmp_path: Path, code: int, dtype: str):
    write_megatron(tmp_path, [[[1, 2, 3], [4]], [[65_000 % 60_000]], [[7, 8]]], code, dtype)
    read = [tokens.tolist() for tokens in read_megatron(str(tmp_path / "data.bin"))]
    assert read == [[1, 2, 3, 4], [5_000], [7, 8]]


def test_broken_files_are_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"data\.idx' does not exist"):
        list(read_megatron(str(tmp_path / "data.bin")))
    index = write_megatron(tmp_path, [[[1, 2, 3]]], 8, "<u2")
    (tmp_path / "data.bin").write_bytes(b"\0\0")
    with pytest.raises(DataError, match=r"data\.bin' is shorter"):
        list(read_megatron(str(index)))
    index.write_bytes(index.read_bytes()[:-8])
    with pytest.raises(DataError, match="its header wants"):
        list(read_megatron(str(index)))
    index.write_bytes(b"something else entirely, of no use at all")
    with pytest.raises(DataError, match="no Megatron index"):
        list(read_megatron(str(index)))
