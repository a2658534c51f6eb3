"""Instruction checks: every one can hold and can fail, and combinations do not contradict."""

from __future__ import annotations

import json

import pytest

from zaya_jax.rl.environments.instructions import CONSTRAINTS, InstructionEnvironment
from zaya_jax.rl.environments.protocol import Problem

FOLLOWED = {
    "at_least_words": (30, "word " * 30, "word " * 29),
    "at_most_words": (60, "word " * 60, "word " * 61),
    "paragraphs": (2, "a\n\nb", "a\nb"),
    "bullets": (2, "- a\n- b\n", "List:\n- a\n- b"),
    "includes": ("river", "The River.", "Rivers."),
    "excludes": ("the", "Other things, then.", "At the end."),
    "lower_case": ("", "all low 7", "All low"),
    "upper_case": ("", "ALL UP", "ALL Up"),
    "no_commas": ("", "a b", "a, b"),
    "ends_with": ("over.", "It is over.\n", "over"),
}


def scored(constraints: dict, answer: str) -> float:
    problem = Problem("instructions", 0, 0, "", {"constraints": constraints})
    return InstructionEnvironment().score(problem, answer).reward


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_each_constraint_holds_and_fails(name: str) -> None:
    value, right, wrong = FOLLOWED[name]
    assert scored({name: value}, right) == 1
    assert scored({name: value}, wrong) == 0


@pytest.mark.parametrize("name", [n for n in CONSTRAINTS if n != "at_most_words"])
def test_an_empty_answer_follows_nothing(name: str) -> None:
    assert scored({name: FOLLOWED[name][0]}, "") == 0


def test_all_constraints_or_nothing() -> None:
    both = {"no_commas": "", "ends_with": "DONE"}
    assert scored(both, "a b DONE") == 1
    assert scored(both, "a, b DONE") == 0


def write(constraints: dict) -> str:
    """A text that follows the constraints, to show that one exists."""
    words = ["so"] * (60 if "at_most_words" in constraints else 90)
    words = words[:1] * 30 if constraints.get("at_most_words") else words
    if "includes" in constraints:
        words[0] = constraints["includes"]
    count = constraints.get("paragraphs") or constraints.get("bullets") or 1
    lead = "- " if "bullets" in constraints else ""
    parts = [lead + " ".join(words[i::count]) for i in range(count)]
    text = ("\n" if "bullets" in constraints else "\n\n").join(parts)
    text += " " + str(constraints.get("ends_with", ""))
    return text.upper() if "upper_case" in constraints else text


def test_every_problem_can_be_solved_and_survives_json() -> None:
    environment = InstructionEnvironment()
    for difficulty in range(environment.hardest + 1):
        for seed in range(60):
            problem = environment.sample(difficulty, seed)
            assert problem == environment.sample(difficulty, seed)
            asked = json.loads(json.dumps(problem.reference))["constraints"]
            assert len(asked) == difficulty + 1
            assert environment.score(problem, write(asked)).reward == 1, problem
            assert environment.score(problem, "A,b\nis The AND").reward == 0 or difficulty < 3
