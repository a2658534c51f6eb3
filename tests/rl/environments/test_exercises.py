"""Exercises have the answers that arithmetic and sorting give, and a teacher who errs as told."""

from __future__ import annotations

import re

import pytest

from zaya_jax.rl.environments.exercises import EXERCISES, ExerciseEnvironment
from zaya_jax.rl.errors import RLError


def _digits(prompt: str) -> list[int]:
    return [int(digit) for digit in re.findall(r"\d", prompt)]


@pytest.mark.parametrize("difficulty", [0, 3, 6])
def test_references_are_what_the_words_of_the_prompt_ask_for(difficulty: int) -> None:
    expected = {
        "reverse": lambda d: " ".join(str(x) for x in reversed(d)),
        "sort": lambda d: " ".join(sorted(str(x) for x in d)),
        "largest": lambda d: max(str(x) for x in d),
        "add": lambda d: str(sum(d)),
        "say": lambda d: "",
    }
    for name in EXERCISES:
        environment = ExerciseEnvironment(name)
        for seed in range(20):
            problem = environment.sample(difficulty, seed)
            digits = _digits(problem.prompt)
            assert len(digits) == difficulty + 3
            if name != "say":
                assert problem.reference["answer"] == expected[name](digits)


def test_a_careful_solution_scores_and_its_reasoning_leads_to_the_answer() -> None:
    for name in EXERCISES:
        environment = ExerciseEnvironment(name)
        for seed in range(30):
            problem = environment.sample(1, seed)
            worked = environment.demonstration(problem, right=True, seed=seed)
            assert worked.reasoning.endswith(worked.answer)
            assert environment.score(problem, worked.answer).reward == 1


def test_a_careless_teacher_is_mostly_wrong() -> None:
    for name, most in {"reverse": 0, "sort": 0, "largest": 40, "add": 0}.items():
        environment = ExerciseEnvironment(name)
        right = 0
        for seed in range(100):
            problem = environment.sample(1, seed)
            worked = environment.demonstration(problem, right=False, seed=seed)
            right += environment.score(problem, worked.answer).reward == 1
        assert right <= most


def test_every_line_of_a_sum_but_the_slip_is_worked_out_faithfully() -> None:
    environment = ExerciseEnvironment("add")
    for seed in range(50):
        problem = environment.sample(2, seed)
        worked = environment.demonstration(problem, right=False, seed=seed)
        lines = [line.replace("=", "+").split(" + ") for line in worked.reasoning.splitlines()]
        wrong = [int(total) != int(a) + int(b) for a, b, total in lines]
        assert sum(wrong) == 1
        assert [line[2] for line in lines[:-1]] == [line[0] for line in lines[1:]]


def test_words_count_and_manners_do_not() -> None:
    environment = ExerciseEnvironment("say")
    problem = next(
        p for seed in range(999) if (p := environment.sample(0, seed)).prompt == "Say 4 1 9"
    )
    for answer, reward in {
        "four one nine": 1,
        " Four one nine.\n": 1,
        "four nine one": 0,
        "4 1 9": 0,
        "four one nine nine": 0,
        "": 0,
    }.items():
        assert environment.score(problem, answer).reward == reward, answer


def test_held_out_digits_are_never_learnt_from() -> None:
    learnt, left_out = (
        {ExerciseEnvironment("sort", held_out=out).sample(0, seed).prompt for seed in range(600)}
        for out in (False, True)
    )
    assert not learnt & left_out
    assert 0.1 < len(left_out) / len(learnt | left_out) < 0.3


def test_unknown_exercises_and_difficulties_are_named() -> None:
    with pytest.raises(RLError, match="no exercise 'subtract'; there are reverse, sort"):
        ExerciseEnvironment("subtract")
    with pytest.raises(RLError, match=r"hardest=7: must lie in 0\.\.6"):
        ExerciseEnvironment("sort", hardest=7)
