"""The safetensors reader believes nothing, and reads and writes what the format says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.checkpoint.hub_folders import BFLOAT16, read_folder, write_raw_safetensors
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.checkpoint.safetensors_file import SafetensorsFile, SafetensorsWriter


def entry(start: int, end: int, shape: Any = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


_ENTRY = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
TWICE = b"{" + _ENTRY + b"," + _ENTRY + b"}"

# header, bytes that follow, message
LIES: dict[str, tuple[Any, int, str]] = {
    "ends outside the file": ({"a": entry(0, 16, (4,))}, 8, "tensor 'a': its bytes end at"),
    "begins outside the file": (
        {"a": entry(1 << 60, (1 << 60) + 8)},
        8,
        "tensor 'a'.*bytes end at",
    ),
    "negative offset": ({"a": entry(-8, 0)}, 8, "tensor 'a'.*non-negative"),
    "backwards": ({"a": entry(8, 0)}, 8, "tensor 'a'.*no range"),
    "size too small for the shape": ({"a": entry(0, 8, (3,))}, 8, "tensor 'a'.*takes 12 bytes"),
    "size too large for the shape": ({"a": entry(0, 8, (1,))}, 8, "tensor 'a'.*takes 4 bytes"),
    "product of the shape beyond 64 bits": (
        {"a": entry(0, 8, (1 << 40, 1 << 40))},
        8,
        "'a'.*takes",
    ),
    "negative shape": ({"a": entry(0, 8, (-1, -2))}, 8, "tensor 'a'.*non-negative"),
    "shape of truths": ({"a": entry(0, 4, (True,))}, 4, "tensor 'a'.*integers"),
    "shape of fractions": ({"a": entry(0, 8, (2.0,))}, 8, "tensor 'a'.*integers"),
    "overlap": ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "tensor 'b' overlaps 'a'"),
    "two at the same place": ({"a": entry(0, 8), "b": entry(0, 8)}, 8, "overlaps"),
    "gap": ({"a": entry(0, 8), "b": entry(12, 20)}, 20, "tensor 'b' leaves a gap after 'a'"),
    "gap before the first": ({"a": entry(4, 12)}, 12, "tensor 'a' leaves a gap after the header"),
    "bytes nobody owns": ({"a": entry(0, 8)}, 12, "4 bytes after the last tensor"),
    "no tensors but bytes": ({}, 8, "8 bytes after the last tensor"),
    "quantised": ({"a": entry(0, 2, (2,), "F8_E4M3")}, 2, "tensor 'a'.*F8_E4M3.*[Qq]uantised"),
    "unknown dtype": ({"a": entry(0, 8, (2,), "object")}, 8, "tensor 'a'.*object"),
    "dtype no text": (
        {"a": {"dtype": 3, "shape": [2], "data_offsets": [0, 8]}},
        8,
        "tensor 'a'.*3",
    ),
    "dtype a list": ({"a": entry(0, 8) | {"dtype": ["F32"]}}, 8, "tensor 'a'.*F32"),
    "dtype an object": ({"a": entry(0, 8) | {"dtype": {}}}, 8, "tensor 'a'.*{}"),
    "half a character": ({"\ud800": entry(0, 8)}, 8, "half a surrogate pair"),
    "missing field": ({"a": {"dtype": "F32", "shape": [2]}}, 8, "tensor 'a'.*must have"),
    "entry no object": ({"a": 7}, 8, "tensor 'a'.*must have"),
    "three offsets": (
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}},
        8,
        "no range",
    ),
    "the same name twice": (TWICE, 8, "'a' occurs twice"),
    "header no object": ([1, 2], 0, "holds no JSON object"),
    "header no JSON": (b"{oops", 0, "not valid JSON"),
    "header nested without end": (b"[" * 100_000, 0, "not valid JSON|not a JSON"),
    "a pickle": (b"\x80\x04\x95", 0, "not valid JSON"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_is_refused(name: str, tmp_path: Path):
    header, extra, message = LIES[name]
    path = tmp_path / "model.safetensors"
    write_raw_safetensors(path, header, b"\0" * extra)
    with pytest.raises(CheckpointError, match=message) as error:
        SafetensorsFile(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes: too short"),
        (b"\x01\0\0", "3 bytes: too short"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "header claims 9223372036854775808 bytes"),
        ((100).to_bytes(8, "little") + b"{}", "header claims 100 bytes of a file of 10"),
    ],
)
def test_a_length_that_lies_is_refused(content: bytes, message: str, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFile(path)


def test_every_truncation_is_noticed(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    header = {"a": entry(0, 8), "b": entry(8, 16)}
    write_raw_safetensors(path, header, b"\1" * 16)
    whole = path.read_bytes()
    SafetensorsFile(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            SafetensorsFile(path)


ARRAYS = st.tuples(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([np.dtype(np.float32), BFLOAT16, np.dtype(np.float16)]),
)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.example(tensors={"\x00": ([], np.dtype(np.float32))}, seed=0)
@hypothesis.given(
    tensors=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), ARRAYS, max_size=5
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_written_in_parts_is_read_back(
    tensors: dict[str, Any], seed: int, tmp_path_factory: pytest.TempPathFactory
):
    rng = np.random.default_rng(seed)
    arrays = {n: rng.standard_normal(s).astype(d) for n, (s, d) in tensors.items()}
    path = tmp_path_factory.mktemp("parts") / "model.safetensors"
    writer = SafetensorsWriter(path, {n: (a.shape, a.dtype) for n, a in arrays.items()})
    # Not a permutation of an array of names: NumPy strips trailing NULs from strings.
    names = list(arrays)
    for name in (names[i] for i in rng.permutation(len(names))):
        array = arrays[name]
        rows = array.shape[0] if array.ndim else 0
        cut = int(rng.integers(0, rows + 1))
        if array.ndim:
            writer.write(name, array[:cut].nbytes, array[cut:])
            writer.write(name, 0, array[:cut])
        else:
            writer.write(name, 0, array)
    file = SafetensorsFile(path)
    independent = read_folder(path.parent)
    assert set(file.entries) == set(arrays) == set(independent)
    for name, array in arrays.items():
        for found in (file.tensor(name), independent[name]):
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert found.tobytes() == array.tobytes()
    file.release()
    for name, array in arrays.items():
        assert file.tensor(name).tobytes() == array.tobytes()


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_damaged_header_is_read_or_refused_but_never_crashes(
    position: int, value: int, tmp_path_factory: pytest.TempPathFactory
):
    path = tmp_path_factory.mktemp("damage") / "model.safetensors"
    write_raw_safetensors(path, {"a": entry(0, 8), "b": entry(8, 16)}, b"\1" * 16)
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    for name in file.entries:
        assert file.tensor(name).nbytes <= 16


@pytest.mark.skipif(not importlib.util.find_spec("safetensors"), reason="needs the parity extra")
def test_the_reference_implementation_reads_our_files(tmp_path: Path):
    import safetensors

    path = tmp_path / "model.safetensors"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    writer = SafetensorsWriter(path, {"x": (array.shape, array.dtype)})
    writer.write("x", 0, array)
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}  # transformers insists on it
        np.testing.assert_array_equal(file.get_tensor("x"), array)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    assert (8 + length) % 8 == 0
    json.loads(path.read_bytes()[8 : 8 + length])


def test_a_file_is_open_only_while_its_tensors_are_in_use(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    before = len(list(Path("/proc/self/fd").iterdir()))
    writer = SafetensorsWriter(path, {"x": ((2,), np.dtype(np.float32))})
    writer.write("x", 0, np.ones(2, np.float32))
    file = SafetensorsFile(path)
    tensor = file.tensor("x")
    file.release()
    np.testing.assert_array_equal(tensor, [1, 1])
    del tensor
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_is_exchanged_is_noticed(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    write_raw_safetensors(path, {"a": entry(0, 8)}, b"\1" * 8)
    file = SafetensorsFile(path)
    path.unlink()
    write_raw_safetensors(path, {"a": entry(0, 16, (4,))}, b"\2" * 16)
    with pytest.raises(CheckpointError, match=f"{path} changed while it was being read"):
        file.tensor("a")
