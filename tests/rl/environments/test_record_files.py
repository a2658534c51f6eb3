"""Records from files: every field checked, every fault named by its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zaya_jax.rl.environments.code import CodeRecord, CodeTest
from zaya_jax.rl.environments.maths import MathsRecord
from zaya_jax.rl.environments.preferences import PreferenceRecord
from zaya_jax.rl.environments.record_files import by_level, draw_record, from_jsonl
from zaya_jax.rl.errors import RLError

CODE = {
    "statement": "Double.",
    "tests": [{"stdin": "1", "stdout": "2"}],
    "accepted": ["print(2 * int(input()))"],
    "level": 1,
}


def written(folder: Path, *rows: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def test_rows_become_records_in_their_order(tmp_path: Path) -> None:
    second = {"statement": "Again.", "tests": CODE["tests"], "id": 7, "meta": {"any": None}}
    assert from_jsonl(written(tmp_path, CODE, "", second), CodeRecord) == (
        CodeRecord("Double.", (CodeTest("1", "2"),), ("print(2 * int(input()))",), level=1),
        CodeRecord("Again.", (CodeTest("1", "2"),)),
    )
    maths = written(tmp_path, {"statement": "Halve 1.", "answer": "\\frac{1}{2}"})
    assert from_jsonl(maths, MathsRecord) == (MathsRecord("Halve 1.", "\\frac{1}{2}"),)
    pair = written(tmp_path, {"prompt": "Hello", "chosen": "Hi", "rejected": "No"})
    assert from_jsonl(pair, PreferenceRecord) == (PreferenceRecord("Hello", "Hi", "No"),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ({**CODE, "statement": 3}, "field 'statement' is 3; it must be text"),
        ({"tests": CODE["tests"]}, "field 'statement' is missing"),
        ({**CODE, "acepted": []}, r"field 'acepted' is unknown; did you mean 'accepted'\?"),
        ({**CODE, "tests": {}}, r"field 'tests' is \{\}; it must be a list"),
        ({**CODE, "tests": []}, "'Double.' has no tests"),
        ({**CODE, "tests": [3]}, r"field 'tests\[0\]' is 3; it must be an object"),
        ({**CODE, "tests": [{"stdin": ""}]}, r"field 'tests\[0\].stdout' is missing"),
        ({**CODE, "tests": [{"stdin": "", "stdout": 2}]}, r"field 'tests\[0\].stdout' is 2"),
        ({**CODE, "accepted": "print(1)"}, "field 'accepted' is 'print.1.'; it must be a list"),
        ({**CODE, "level": True}, "field 'level' is True; it must be an integer"),
        ({**CODE, "statement": "\ud800"}, "field 'statement' holds half of a surrogate pair"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(
    tmp_path: Path, row: object, message: str
) -> None:
    path = written(tmp_path, CODE, row)
    with pytest.raises(RLError, match=f"rows.jsonl:2: .*{message}"):
        from_jsonl(path, CodeRecord)


def test_files_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RLError, match="does not exist"):
        from_jsonl(str(tmp_path / "none.jsonl"), CodeRecord)
    with pytest.raises(RLError, match="holds no records"):
        from_jsonl(written(tmp_path, ""), CodeRecord)
    with pytest.raises(RLError, match="its ending names no kind of row file"):
        from_jsonl(str(tmp_path / "rows.csv"), CodeRecord)


def test_records_are_drawn_by_level_and_seed() -> None:
    records = [MathsRecord(str(i), "1", level=i % 2) for i in range(10)]
    levels = by_level("maths", records)
    assert {draw_record(levels, 1, seed) for seed in range(60)} == {1, 3, 5, 7, 9}
    assert draw_record(levels, 9, 4) == draw_record(levels, 1, 4)
    for wrong in ([], [MathsRecord("x", "1", level=-1)], [MathsRecord("x", "1", level=1)]):
        with pytest.raises(RLError, match="must be 0, 1, 2"):
            by_level("maths", wrong)
