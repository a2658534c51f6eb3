"""Rewards from a reward model, and the checks that come before it."""

from __future__ import annotations

import math

import pytest

from tests.rl.environments.test_protocol import Echo
from zaya_jax.rl.environments.instructions import InstructionEnvironment
from zaya_jax.rl.environments.preferences import (
    GatedEnvironment,
    PreferenceEnvironment,
    PreferenceRecord,
    agreement,
)
from zaya_jax.rl.environments.protocol import (
    BrokenEnvironmentError,
    Problem,
    Score,
    score_response,
)
from zaya_jax.rl.errors import RLError

RECORDS = [PreferenceRecord("Hello?", "Hello!", "No."), PreferenceRecord("Why?", level=1)]


class Length:
    """Longer is better, up to 100 characters."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def score(self, prompt: str, response: str) -> float:
        self.asked.append((prompt, response))
        return len(response) / 100


class Failing:
    def score(self, prompt: str, response: str) -> float:
        raise BrokenEnvironmentError("no reward model")


class Graded(Echo):
    def score(self, problem: Problem, answer: str) -> Score:
        return Score(0.5, "half")


def test_preference_prompts_are_worth_what_the_reward_model_says() -> None:
    model = Length()
    environment = PreferenceEnvironment(RECORDS, model)
    problem = environment.sample(0, 3)
    assert (problem.prompt, environment.hardest) == ("Hello?", 1)
    score = score_response(environment, problem, "<think>much thought</think>four")
    assert (score.reward, score.broken) == (0.04, False)
    assert model.asked == [("Hello?", "four")]  # the thinking is not judged
    assert score_response(environment, problem, "<think>x</think> ").reward == 0
    assert len(model.asked) == 1  # nothing was said: no question


def test_a_failed_check_is_worth_nothing_whatever_the_model_says() -> None:
    model = Length()
    environment = GatedEnvironment(InstructionEnvironment(), model)
    problem = Problem(environment.name, 0, 0, "p", {"constraints": {"no_commas": ""}})
    assert environment.score(problem, "a, b").reward == 0
    assert model.asked == []
    assert environment.score(problem, "a b").reward == 0.03
    assert model.asked == [("p", "a b")]
    assert environment.sample(1, 2).source == environment.name == "instructions+judged"


def test_a_failing_gate_is_broken_and_a_graded_one_refused() -> None:
    environment = GatedEnvironment(Echo(), Length())
    problem = environment.sample(0, 0)
    assert score_response(environment, problem, "break").broken
    graded = GatedEnvironment(Graded(), Length())
    assert "gives 0.5; a gate is 0 or 1" in score_response(graded, problem, "x").reason


@pytest.mark.parametrize("value", [math.nan, 1.5, -0.1, math.inf])
def test_a_reward_model_that_fails_makes_the_score_broken(value: float) -> None:
    class Wrong:
        def score(self, prompt: str, response: str) -> float:
            return value

    for model in (Wrong(), Failing()):
        environment = PreferenceEnvironment(RECORDS, model)
        score = score_response(environment, environment.sample(0, 0), "hi")
        assert (score.reward, score.broken) == (0, True)


def test_agreement_with_known_preferences() -> None:
    pairs = [PreferenceRecord("p", "long", "no"), PreferenceRecord("p", "a", "bc")]
    pairs += [PreferenceRecord("p", "ab", "cd"), PreferenceRecord("p")]
    assert agreement(Length(), pairs) == 0.5
    with pytest.raises(RLError, match="no record has a chosen"):
        agreement(Length(), [PreferenceRecord("p")])


def test_half_a_record_is_refused() -> None:
    with pytest.raises(RLError, match="only one of chosen and rejected"):
        PreferenceRecord("p", chosen="a")
    with pytest.raises(RLError, match="empty prompt"):
        PreferenceRecord(" ")
