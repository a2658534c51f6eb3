"""Problems whose answers stand in a box: asked as grading asks, answered as it wants it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.configs.aggregation_small import ATTEMPTS, PROBLEMS
from zaya_jax.data import load_tokenizer, train_tokenizer
from zaya_jax.data.boxed_answer import ask_boxed, boxed
from zaya_jax.data.reasoning_problems import candidate_records, read_problems
from zaya_jax.evaluation.items import read_fields, text
from zaya_jax.rl.environments.maths import last_boxed

SUMS = "reasoning_gym:chain_sum?size={}&seed={}&min_terms=4&max_terms=4&max_digits=1"
HELD_OUT = Path("experiments/configs/evaluation/data/four_term_sums.jsonl")


@pytest.fixture(autouse=True)
def library() -> None:
    pytest.importorskip("reasoning_gym")


def test_boxed_problems_ask_and_answer_as_grading_wants_it() -> None:
    [plain], [own] = (
        [row["messages"] for row in read_problems(SUMS.format(1, 5) + end)]
        for end in ("", "&boxed=1")
    )
    assert own[0]["content"] == ask_boxed(plain[0]["content"])
    assert last_boxed(own[1]["content"]) == plain[1]["content"]
    assert own[1]["reasoning"] == plain[1]["reasoning"]


def test_boxed_candidates_all_answer_in_a_box() -> None:
    options = {"size": 3, "seed": 5, "boxed": 1}
    for record in candidate_records("sums", "chain_sum", options, 4):
        assert record["problem"].endswith("\\boxed{}.")
        for one in record["candidates"]:
            assert one["answer"] == boxed(str(last_boxed(one["answer"])))


@pytest.mark.parametrize("task", ["chain_sum", "gcd", "spell_backward"])
def test_seeds_count_problems(task: str) -> None:
    def asked(size: int, seed: int) -> list[str]:
        rows = read_problems(f"reasoning_gym:{task}?size={size}&seed={seed}")
        return [row["messages"][0]["content"] for row in rows]

    assert asked(3, 7)[2:] == asked(1, 9)


def test_held_out_sums_are_not_among_those_of_training() -> None:
    size, seed = (
        {
            part.split("=")[0]: int(part.split("=")[1])
            for part in source.partition("?")[2].split("&")
        }
        for source in (PROBLEMS, ATTEMPTS)
    )
    assert size["seed"] + size["size"] == seed["seed"]
    trained = SUMS.format(size["size"] + seed["size"], size["seed"])
    asked = {row["messages"][0]["content"] for row in read_problems(trained)}
    held_out = [
        row["problem"] for _, _, row in read_fields(HELD_OUT, {"problem": text, "answer": text})
    ]
    assert len(held_out) == len(set(held_out)) == 50
    assert not asked.intersection(held_out)


def test_a_tokenizer_learns_from_what_is_said_and_thought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "tokenizer.json"
    config = tmp_path / "config.py"
    mixture = (f"{SUMS.format(60, 1)}=0.5", "aggregation:chain_sum?size=10&subset=2=0.5")
    config.write_text(
        "from experiments.configs import base\n"
        "def get_config(name=''):\n"
        "    config = base.get_config()\n"
        "    config.data.packing = 'planned'\n"
        f"    config.data.mixture = {mixture!r}\n"
        "    return config\n"
    )
    options = ["--vocab-size", "600", "--output", str(file), "--config", str(config)]
    monkeypatch.setattr(sys, "argv", ["train_tokenizer", *options])
    train_tokenizer.main()
    trained = load_tokenizer(str(file))
    for word in (" arithmetic", " attempts", "Below"):
        assert len(trained.encode(word)) == 1
