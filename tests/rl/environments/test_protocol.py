"""Thinking never reaches a verifier; broken verifiers are told apart from wrong answers."""

from __future__ import annotations

import pytest

from zaya_jax.rl.environments.protocol import (
    BrokenEnvironmentError,
    Environment,
    Problem,
    Score,
    last_tagged,
    sample_problem,
    score_response,
    strip_thinking,
)
from zaya_jax.rl.errors import RLError

PROBLEM = Problem("echo", 0, 0, "say 7", {})


class Echo:
    name = "echo"
    hardest = None

    def sample(self, difficulty: int, seed: int) -> Problem:
        return PROBLEM

    def score(self, problem: Problem, answer: str) -> Score:
        if answer == "break":
            raise BrokenEnvironmentError("echo: no verifier")
        return Score(float(last_tagged(answer) == "7"), "compared")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),  # the prompt may have opened the thinking
        ("<think>a</think>b</think>c", "c"),
        ("<think>a", None),
        ("<think>a</think>b<think>c", None),
        ("", ""),
    ],
)
def test_the_answer_is_what_follows_the_thinking(response: str, answer: str | None) -> None:
    assert strip_thinking(response) == answer


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer> 7 </answer>", "7"),
        ("<answer>6</answer> no: <answer>7</answer>", "7"),
        ("<answer>6</answer> no: <answer>7", "6"),
        ("7", None),
        ("</answer>7<answer>", None),
        ("<answer><answer>7</answer>", "7"),
    ],
)
def test_the_last_complete_pair_of_tags_counts(text: str, content: str | None) -> None:
    assert last_tagged(text) == content


def test_an_answer_in_the_thinking_does_not_count() -> None:
    environment = Echo()
    assert isinstance(environment, Environment)
    inside = "<think><answer>7</answer></think>I do not know."
    assert score_response(environment, PROBLEM, inside).reward == 0
    assert score_response(environment, PROBLEM, "<think>hm</think><answer>7</answer>").reward == 1
    unfinished = score_response(environment, PROBLEM, "<think><answer>7</answer>")
    assert (unfinished.reward, unfinished.broken) == (0, False)
    literal = score_response(environment, PROBLEM, "<answer>7</answer><think>", has_thinking=False)
    assert literal.reward == 1


def test_a_failing_verifier_marks_the_score_as_broken() -> None:
    score = score_response(Echo(), PROBLEM, "break")
    assert (score.broken, score.reason) == (True, "echo: no verifier")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (3.0, "echo: the verifier raised RLError: reward 3.0 (x): must lie in [0, 1]"),
        (None, "echo: the verifier gave None, must give a Score"),
        (KeyError("digit"), "echo: the verifier raised KeyError: 'digit'"),
    ],
)
def test_a_verifier_that_gives_no_score_is_broken_and_named(found: object, reason: str) -> None:
    class Wrong(Echo):
        def score(self, problem: Problem, answer: str) -> Score:
            if isinstance(found, Exception):
                raise found
            return found if found is None else Score(found, "x")  # type: ignore[return-value,arg-type]

    score = score_response(Wrong(), PROBLEM, "7")
    assert (score.broken, score.reason) == (True, reason)


def test_an_environment_that_makes_no_problem_is_broken_and_named() -> None:
    class Raising(Echo):
        def sample(self, difficulty: int, seed: int) -> Problem:
            raise KeyError("digits")

    class Empty(Echo):
        def sample(self, difficulty: int, seed: int) -> Problem:
            return None  # type: ignore[return-value]

    assert sample_problem(Echo(), 2, 7) == PROBLEM
    with pytest.raises(
        BrokenEnvironmentError, match=r"echo: sample\(2, 7\) raised KeyError: 'digi"
    ):
        sample_problem(Raising(), 2, 7)
    with pytest.raises(BrokenEnvironmentError, match=r"echo: sample\(2, 7\) gave None, must give"):
        sample_problem(Empty(), 2, 7)


def test_rewards_outside_zero_and_one_are_refused() -> None:
    with pytest.raises(RLError, match="reward -1"):
        Score(-1.0, "x")
