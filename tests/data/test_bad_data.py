"""The drill: whatever is wrong with the data is one clear error, or counted and left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zaya_jax.data import DataConfig, DataError, load_text
from zaya_jax.data.planned import PlannedExamples

CHAT = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}


def _load(source: Path, **changes: object) -> PlannedExamples:
    fields = {"tokenizer": "bytes", "sequence_length": 64, "packing": "planned"}
    return load_text(DataConfig(source=str(source), **(fields | changes)))


def _good(count: int) -> list[str]:
    return [json.dumps({"text": f"row {n}"}) for n in range(count)]


def _with(folder: Path, *bad: object) -> Path:
    lines = [*_good(30), *(row if isinstance(row, str) else json.dumps(row) for row in bad)]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"txt": "x"}, "neither 'text' nor 'messages'"),
        ({"text": 5}, "'text' is int"),
        ({"text": ""}, "'text' is empty"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role 'robot' is none of"),
        ({"messages": [CHAT["messages"][0], {"role": "assistant", "content": ""}]}, "is empty"),
        ({"messages": [{**CHAT["messages"][0], "content": "\ud800"}, CHAT["messages"][1]]}, "half"),
        ({"messages": [{**CHAT["messages"][1], "tool_calls": 5}]}, "'tool_calls' is int"),
        ({**CHAT, "tools": 5}, "'tools' is int"),
        ({**CHAT, "tools": [{"name": "f", "parameters": 5}]}, "tool 0: its parameters are no"),
        (
            {**CHAT, "tools": [{"name": "f", "parameters": {"properties": {"x": 5}}}]},
            "tool 0: its properties are no object of objects",
        ),
        (
            {**CHAT, "tools": [{"name": "f", "parameters": {"required": 5}}]},
            "'required' is int",
        ),
        ("{", "not JSON"),
        ("\x00\x01", "not JSON"),
    ],
)
def test_a_bad_row_is_left_out_and_named(tmp_path: Path, row: object, reason: str):
    loaded = _load(_with(tmp_path, row))
    assert len(loaded.notes) == 1
    assert f"1 unusable rows were left out: {tmp_path}/rows.jsonl:31: " in loaded.notes[0]
    assert reason in loaded.notes[0]


def test_too_many_bad_rows_stop_the_reading(tmp_path: Path):
    path = _with(tmp_path, *({"txt": n} for n in range(6)))
    assert "6 unusable" in _load(path, max_bad_rows=6).notes[0]
    with pytest.raises(DataError, match=r"more than max_bad_rows=5.*rows\.jsonl:31: neither"):
        _load(path, max_bad_rows=5)


def test_repeated_shards_are_read_once(tmp_path: Path):
    path = _with(tmp_path, CHAT)
    (tmp_path / "copy.jsonl").write_bytes(path.read_bytes())
    loaded = _load(tmp_path)
    assert "31 repeated rows" in loaded.notes[0]
    assert len(loaded.sources[0].train) + len(loaded.sources[0].validation) == 31


def test_an_empty_file_among_others_does_no_harm(tmp_path: Path):
    _with(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    assert _load(tmp_path).notes == ()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", "", "holds nothing to train on"),
        ("one.jsonl", '{"text": "x"}\n', "1 example.*too few to hold some out"),
        ("broken.jsonl", "{\n{\n", "2 unusable rows"),
        ("no_such_file.jsonl", None, "does not exist"),
        ("no_such_folder", None, "neither one of"),
    ],
)
def test_a_source_without_data_is_one_error(
    tmp_path: Path, name: str, content: str | None, message: str
):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        _load(tmp_path / name)


def test_a_very_long_line_is_skipped_without_being_held(tmp_path: Path):
    path = _with(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"text": "')
        for _ in range(20):
            file.write(b"x" * 2**20)
        file.write(b'"}\n' + json.dumps({"text": "behind it"}).encode() + b"\n")
    loaded = _load(path)
    assert "rows.jsonl:31: longer than 16,777,216 bytes" in loaded.notes[0]
    assert len(loaded.sources[0].train) + len(loaded.sources[0].validation) == 31


def test_files_may_vanish_once_they_are_read(tmp_path: Path):
    from zaya_jax.data import training_batches

    path = _with(tmp_path)
    config = DataConfig(source=str(path), tokenizer="bytes", sequence_length=64, packing="planned")
    batches = training_batches(config, load_text(config))
    path.unlink()
    for _ in range(5):
        next(batches)
    batches.close()
