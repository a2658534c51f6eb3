"""Files of problems: what is read, and how what is wrong with them is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.items import Item, digest, read_fields, text
from zaya_jax.evaluation.tasks import code, final_answer, instructions, multiple_choice

FIELDS = {"problem": text, "answer": text}
GOOD = {"problem": "1 + 1?", "answer": "2"}
CHOICE = {"question": "Which?", "choices": ["x", "y"], "answer": "A"}
ORDER = {"prompt": "Write.", "constraints": [{"name": "no_commas", "value": ""}]}
PROGRAM = {"statement": "Print 1.", "tests": [{"stdin": "", "stdout": "1"}]}


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "task.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_lines_give_their_fields_and_a_name(tmp_path: Path) -> None:
    path = written(
        tmp_path, GOOD, {**GOOD, "id": "b", "meta": {"year": 2026}}, "", {**GOOD, "id": 7}
    )
    rows = list(read_fields(path, FIELDS))
    assert [own for _, own, _ in rows] == ["1", "b", "7"]
    assert rows[1][2] == GOOD
    assert rows[2][0] == f"{path}:4"


@pytest.mark.parametrize(
    ("fields", "row", "message"),
    [
        (FIELDS, "{", "not JSON"),
        (FIELDS, "[1]", "no JSON object"),
        (FIELDS, {"problem": "x"}, "answer: missing"),
        (FIELDS, {**GOOD, "anwser": "2"}, "anwser: unknown field; did you mean answer"),
        (FIELDS, {**GOOD, "answer": 2}, "answer: 2 must be text"),
        (FIELDS, {**GOOD, "answer": "  "}, "must be text, and not empty"),
        (FIELDS, {**GOOD, "id": [1]}, r"id: \[1\] must be text or an integer"),
        (FIELDS, '{"problem": "\\ud800", "answer": "2"}', "half of a surrogate pair"),
        (multiple_choice.FIELDS, {**CHOICE, "choices": ["x"]}, "choices: .* at least 2"),
        (multiple_choice.FIELDS, {**CHOICE, "choices": ["x", ""]}, r"choices\[1\]: ''"),
        (instructions.FIELDS, {**ORDER, "constraints": []}, "constraints: .* at least 1"),
        (
            instructions.FIELDS,
            {**ORDER, "constraints": [{"name": "rhymes", "value": ""}]},
            r"constraints\[0\].name: 'rhymes' is none of",
        ),
        (
            instructions.FIELDS,
            {**ORDER, "constraints": [{"name": "paragraphs", "value": "2"}]},
            r"constraints\[0\].value: '2' must be an integer",
        ),
        (code.FIELDS, {**PROGRAM, "tests": [{"stdin": ""}]}, r"tests\[0\]: .* stdin, stdout"),
        (code.FIELDS, {**PROGRAM, "tests": [{"stdin": 1, "stdout": ""}]}, r"tests\[0\].stdin: 1"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(
    tmp_path: Path, fields: Any, row: Any, message: str
) -> None:
    path = written(tmp_path, "", row)
    with pytest.raises(EvaluationError, match=f"task.jsonl:2: .*{message}|task.jsonl:2: {message}"):
        list(read_fields(path, fields))


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(EvaluationError, match=message):
            list(read_fields(path, FIELDS))

    refused(tmp_path / "none.jsonl", "does not exist")
    refused(tmp_path / "task.txt", "must end in .jsonl")
    refused(written(tmp_path), "holds no problem")
    refused(written(tmp_path, {**GOOD, "id": "a"}, {**GOOD, "id": "a"}), r":2: id 'a' .*:1")


@pytest.mark.parametrize("answer", ["C", "AB", "1"])
def test_the_right_option_must_exist(tmp_path: Path, answer: str) -> None:
    path = written(tmp_path, {**CHOICE, "answer": answer})
    with pytest.raises(EvaluationError, match=r":1: answer: .* one letter of AB"):
        multiple_choice.MultipleChoice(path)


def test_a_changed_problem_changes_the_digest() -> None:
    item = Item("a", "prompt", "2")
    assert digest([item]) == digest([Item("a", "prompt", "2")])
    assert digest([item]) != digest([Item("a", "prompt", "3")])


def test_the_demonstration_files_are_good() -> None:
    data = Path(__file__).parents[2] / "experiments" / "configs" / "evaluation" / "data"
    for module, name in [
        (final_answer, "maths"),
        (multiple_choice, "choices"),
        (instructions, "instructions"),
        (code, "code"),
    ]:
        assert len(list(read_fields(data / f"{name}.jsonl", module.FIELDS))) >= 4
