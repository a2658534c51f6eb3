"""Aggregation prompts: what is shown of earlier responses, and who scores."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.rl.environments.test_protocol import Echo
from zaya_jax.rl.environments.aggregation import (
    AggregationConfig,
    AggregationEnvironment,
    CandidateView,
    candidates_from_jsonl,
)
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError
from zaya_jax.rl.errors import RLError

RESPONSES = [f"<think>one two three n{i}</think><answer>{i}</answer>" for i in range(5)]
UNFINISHED = "<think>never ends"


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def environment(
    view: CandidateView, responses: list[str] = RESPONSES, **fields: Any
) -> AggregationEnvironment:
    config = AggregationConfig(view=view, **fields)
    return AggregationEnvironment(Echo(), {(0, 3): responses}, config, encode=encode, decode=decode)


def test_tails_are_the_ends_of_the_thinking_drawn_without_replacement() -> None:
    made = environment(CandidateView.TAIL, candidates=4, tail_tokens=8)
    problem = made.sample(0, 11)
    shown = [line for line in problem.prompt.splitlines() if line.startswith("three n")]
    assert len(shown) == len(set(shown)) == 0 or all(s in problem.prompt for s in shown)
    tails = [f"three n{i}"[-8:] for i in range(5)]
    assert sum(tail in problem.prompt for tail in tails) == 4
    assert "one" not in problem.prompt.replace("one another", "").split("--- Attempt 1 ---")[1]
    assert "<answer>" not in problem.prompt
    assert problem == made.sample(0, 11)
    assert len({made.sample(0, seed).prompt for seed in range(20)}) > 1


def test_a_tail_as_long_as_the_thinking_shows_all_of_it() -> None:
    problem = environment(CandidateView.TAIL, tail_tokens=1_000).sample(0, 0)
    assert problem.prompt.count("one two three") == 4


def test_answers_are_shown_of_all_who_gave_one_and_tails_of_the_others() -> None:
    made = environment(CandidateView.ANSWER, [*RESPONSES, UNFINISHED, "bare", ""], tail_tokens=4)
    problem = made.sample(0, 0)
    shown = re.findall(r"--- Attempt \d ---\n(.*)", problem.prompt)
    wanted = [f"<answer>{i}</answer>" for i in range(5)]
    assert sorted(shown) == sorted([*wanted, "ends", "bare"])  # nothing of the empty one
    assert "one two" not in problem.prompt
    orders = {tuple(re.findall(r"<answer>(\d)", made.sample(0, s).prompt)) for s in range(5)}
    assert len(orders) > 1  # shuffled by the seed
    with pytest.raises(BrokenEnvironmentError, match="no candidate for 3 says anything"):
        environment(CandidateView.ANSWER, ["", "<think></think>"]).sample(0, 0)


def test_candidates_of_several_origins_make_environments_of_several_names() -> None:
    names = [environment(CandidateView.TAIL, origin=o).name for o in ("", "expert", "self")]
    assert names == ["echo+tail", "echo+tail/expert", "echo+tail/self"]


def test_the_inner_environment_scores() -> None:
    made = environment(CandidateView.TAIL)
    problem = made.sample(0, 1)
    assert made.score(problem, "<answer>7</answer>").reward == 1
    assert made.score(problem, "<answer>8</answer>").reward == 0
    assert problem.source == "echo+tail"


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(RLError, match="candidates=0"):
        AggregationConfig(candidates=0)
    with pytest.raises(BrokenEnvironmentError, match="no candidates at difficulty 4"):
        environment(CandidateView.TAIL).sample(4, 0)


def test_candidates_of_one_problem_are_gathered_from_all_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    rows = [
        {"difficulty": 0, "seed": 7, "responses": ["a", "b"]},
        {"difficulty": 1, "seed": 7, "responses": ["c"]},
        {"difficulty": 0, "seed": 7, "responses": ["d"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert candidates_from_jsonl(str(path)) == {(0, 7): ["a", "b", "d"], (1, 7): ["c"]}


@pytest.mark.parametrize(
    "row",
    ["{", "[]", '{"seed": 1, "responses": ["a"]}', '{"difficulty": 0, "seed": 1, "responses": []}'],
)
def test_a_bad_row_of_candidates_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text('{"difficulty": 0, "seed": 1, "responses": ["a"]}\n' + row + "\n")
    with pytest.raises(RLError, match=r"candidates\.jsonl:2: "):
        candidates_from_jsonl(str(path))
