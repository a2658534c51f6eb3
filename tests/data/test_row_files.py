"""Every kind of row file gives the same rows; what is bad in them is named with its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from zaya_jax.data import row_files
from zaya_jax.data.config import DataError
from zaya_jax.data.row_files import BadRow, Row, read_rows

ROWS = [{"text": "first"}, {"text": "naïve 😀"}, {"messages": [{"role": "user", "content": "x"}]}]


def _lines() -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def _fields(path: Path) -> list[object]:
    rows = list(read_rows(str(path)))
    assert [row.place for row in rows] == [f"{path}:{n}" for n in range(1, len(rows) + 1)]
    return [row.fields for row in rows if isinstance(row, Row)]


def test_json_lines_plain_gzip_and_url(tmp_path: Path):
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(_lines())
    packed.write_bytes(gzip.compress(_lines()))
    assert _fields(plain) == _fields(packed) == ROWS
    pytest.importorskip("fsspec")
    assert [row.fields for row in read_rows(f"file://{plain}")] == ROWS


def test_zstandard(tmp_path: Path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(_lines()))
    assert _fields(path) == ROWS


def test_parquet_and_arrow(tmp_path: Path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.Table.from_pylist([{"text": "first"}, {"text": "naïve 😀"}])
    parquet.write_table(table, tmp_path / "a.parquet")
    sink = arrow.OSFile(str(tmp_path / "a.arrow"), "wb")
    with sink, arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert _fields(tmp_path / "a.parquet") == _fields(tmp_path / "a.arrow") == ROWS[:2]


def test_array_record(tmp_path: Path):
    module = pytest.importorskip("array_record.python.array_record_module")
    path = tmp_path / "a.arrayrecord"
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for row in ROWS:
        writer.write(json.dumps(row).encode())
    writer.close()
    assert _fields(path) == ROWS


def test_bad_lines_are_named_and_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_files, "MOST_ROW_BYTES", 50)
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text": "ok"}\n\n{"text": "caf\xe9"}\n[1]\n{"text": \n'
        + b"x" * 500
        + b'\n{"text": "last"}'
    )
    rows = list(read_rows(str(path)))
    reasons = {row.place: row.reason for row in rows if isinstance(row, BadRow)}
    assert reasons == {
        f"{path}:3": "not UTF-8",
        f"{path}:4": "no JSON object",
        f"{path}:5": "not JSON",
        f"{path}:6": "longer than 50 bytes",
    }
    assert [row.fields["text"] for row in rows if isinstance(row, Row)] == ["ok", "last"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.jsonl", None, "does not exist"),
        ("cut.jsonl.gz", gzip.compress(_lines(), mtime=0)[:-12], "cannot be read"),
        ("no.jsonl.gz", b"not gzip", "cannot be read"),
        ("no.parquet", b"not parquet", "no intact Parquet"),
        ("no.arrow", b"not arrow", "no intact Arrow"),
        ("no.arrayrecord", b"not a record", "no intact ArrayRecord"),
        ("what.docx", b"", "names no kind of row file"),
    ],
)
def test_unreadable_files_are_one_error(
    tmp_path: Path, name: str, content: bytes | None, message: str
):
    pytest.importorskip("pyarrow")
    pytest.importorskip("array_record")
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        list(read_rows(str(path)))


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"needs the library zstandard.*zaya_jax\[data\]"):
        list(read_rows(str(path)))
