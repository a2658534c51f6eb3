"""An exact answer is its words and numbers in order, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.settings import TaskConfig, TaskKind
from zaya_jax.evaluation.tasks import make_task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sorting.jsonl").write_text('{"problem": "Sort 3 1 2", "answer": "1 2 3"}\n')
    return tmp_path


def test_grades_and_votes_go_by_words_and_numbers(folder: Path) -> None:
    task = make_task(TaskConfig(TaskKind.EXACT, "sorting.jsonl"), folder)
    (item,) = task.items
    assert item.prompt == "Sort 3 1 2"
    for answer, reward in {"1 2 3": 1, "1, 2, 3.": 1, " 1  2 3\n": 1, "1 3 2": 0, "123": 0}.items():
        assert task.grade(item, answer).reward == reward, answer
    assert task.vote("1, 2, 3.") == task.vote("1 2 3") == "1 2 3"
    assert task.vote("123") == "123"
    assert task.vote(" …\n") is None


def test_a_row_without_an_answer_is_refused_by_its_line(folder: Path) -> None:
    (folder / "sorting.jsonl").write_text('{"problem": "Sort 3 1 2"}\n')
    with pytest.raises(EvaluationError, match=r"sorting\.jsonl:1: answer: missing"):
        make_task(TaskConfig(TaskKind.EXACT, "sorting.jsonl"), folder)
