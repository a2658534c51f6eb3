"""Every kind of task: what it asks, what it counts as right, and what votes together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.settings import TaskConfig, TaskKind
from zaya_jax.evaluation.tasks import KINDS, make_task
from zaya_jax.evaluation.tasks.protocol import Task

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)
ROWS: dict[TaskKind, Any] = {
    TaskKind.FINAL_ANSWER: {"problem": "Half of one?", "answer": "\\frac{1}{2}"},
    TaskKind.MULTIPLE_CHOICE: {"question": "Which?", "choices": ["x", "y"], "answer": "B"},
    TaskKind.INSTRUCTIONS: {
        "prompt": "Write.",
        "constraints": [{"name": "no_commas", "value": ""}, {"name": "includes", "value": "sea"}],
    },
    TaskKind.CODE: {
        "statement": "Double.",
        "tests": [{"stdin": "3", "stdout": "6"}, {"stdin": "4", "stdout": "8"}],
    },
}


def made(kind: TaskKind, folder: Path) -> Task:
    (folder / "task.jsonl").write_text(json.dumps(ROWS[kind]) + "\n")
    return make_task(TaskConfig(kind, "task.jsonl"), folder)


def rewards(task: Task, answers: list[str]) -> list[float]:
    return [task.grade(task.items[0], answer).reward for answer in answers]


def test_every_kind_has_a_task() -> None:
    assert set(KINDS) == set(TaskKind)


@needs_bubblewrap
def test_final_answers_are_compared_by_value(tmp_path: Path) -> None:
    task = made(TaskKind.FINAL_ANSWER, tmp_path)
    assert task.items[0].prompt.startswith("Half of one?")
    answers = ["so \\boxed{0.5}", "\\boxed{2}", "0.5"]
    assert rewards(task, answers) == [1, 0, 0]
    assert [task.vote(answer) for answer in answers] == ["0.5", "2", None]
    task.close()


def test_choices_are_lettered_and_read_from_the_box(tmp_path: Path) -> None:
    task = made(TaskKind.MULTIPLE_CHOICE, tmp_path)
    assert "A. x\nB. y\n" in task.items[0].prompt
    right = ["\\boxed{B}", "\\boxed{(b)}", "\\boxed{\\text{B}}", "\\boxed{B. y}", "\\boxed{B: y}"]
    wrong = ["\\boxed{A}", "B", "\\boxed{}", "\\boxed{Both}", "\\boxed{B} or rather \\boxed{A}"]
    assert rewards(task, right + wrong) == [1] * 5 + [0] * 5
    assert [task.vote(answer) for answer in wrong] == ["A", None, None, None, "A"]


def test_all_instructions_must_be_followed(tmp_path: Path) -> None:
    task = made(TaskKind.INSTRUCTIONS, tmp_path)
    assert rewards(task, ["By the sea.", "By the sea, alone.", "By the lake.", ""]) == [1, 0, 0, 0]
    assert task.vote("By the sea.") is None


@needs_bubblewrap
def test_programs_must_pass_all_tests(tmp_path: Path) -> None:
    task = made(TaskKind.CODE, tmp_path)
    programs = ["print(2 * int(input()))", "print(6)"]
    assert rewards(task, [f"```python\n{p}\n```" for p in programs]) == [1, 0]


@pytest.mark.slow
@needs_bubblewrap
def test_reasoning_gym_makes_the_same_problems_from_a_seed(tmp_path: Path) -> None:
    config = TaskConfig(TaskKind.REASONING_GYM, "chain_sum", problems=2, problem_seed=5)
    task = make_task(config, tmp_path)
    assert [item.id for item in task.items] == ["5", "6"]
    item = task.items[0]
    right = f"It is <answer>{item.reference.reference['answer']}</answer>"
    assert [task.grade(item, a).reward for a in (right, "<answer>x</answer>", "none")] == [1, 0, 0]
    assert task.vote("<answer> 1  2 </answer>") == "1 2"
    with pytest.raises(EvaluationError, match="difficulty=99"):
        make_task(TaskConfig(TaskKind.REASONING_GYM, "chain_sum", difficulty=99), tmp_path)
    task.close()
