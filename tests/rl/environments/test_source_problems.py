"""Chat data as an environment: its answers score, and what training leaves out stays left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zaya_jax.rl.environments.source_problems import SourceProblems
from zaya_jax.rl.errors import RLError


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Two files of 40 problems; those of the second begin with a 9."""
    paths = []
    for level, first in enumerate(("1", "9")):
        path = tmp_path / f"level{level}.jsonl"
        rows = [
            {
                "messages": [
                    {"role": "user", "content": f"{first}{i}+0="},
                    {"role": "assistant", "reasoning": "hm", "content": f" {first}{i}\n"},
                ]
            }
            for i in range(40)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths.append(str(path))
    return paths


def test_the_answer_of_the_data_scores_and_others_do_not(sources: list[str]) -> None:
    environment = SourceProblems("sums", sources)
    assert environment.hardest == 1
    for difficulty, first in ((0, "1"), (1, "9")):
        problem = environment.sample(difficulty, 3)
        assert problem == environment.sample(difficulty, 3)
        assert problem.prompt.startswith(first)
        right = problem.prompt.removesuffix("+0=")
        assert environment.score(problem, f"\n{right} ").reward == 1
        assert environment.score(problem, f"{right}0").reward == 0


def test_held_out_problems_are_never_asked_in_training(sources: list[str]) -> None:
    learnt = SourceProblems("sums", sources, validation_fraction=0.3)
    left_out = SourceProblems("sums", sources, held_out=True, validation_fraction=0.3)
    asked = [{e.sample(0, seed).prompt for seed in range(300)} for e in (learnt, left_out)]
    assert len(asked[0]) + len(asked[1]) == 40
    assert not asked[0] & asked[1]


def test_what_is_no_question_and_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    path.write_text(json.dumps({"messages": messages}) + "\n")
    with pytest.raises(RLError, match=r"talk\.jsonl:1 is not one question and one answer"):
        SourceProblems("talk", [str(path)])
    with pytest.raises(RLError, match="needs at least 1 source"):
        SourceProblems("talk", [])
