"""Aggregation examples: the prompt of inference, a right target, every mixture of attempts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zaya_jax.config import ConfigError
from zaya_jax.data import DataConfig, DataError, load_text, load_tokenizer
from zaya_jax.data.aggregation import main
from zaya_jax.data.aggregation_examples import (
    AggregationSettings,
    aggregation_rows,
    parse_record,
    read_aggregation,
)
from zaya_jax.data.aggregation_prompt import Piece, aggregation_prompt
from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.conversation import RowError, parse_conversation
from zaya_jax.data.reasoning_problems import candidate_records
from zaya_jax.data.row_files import BadRow, Row
from zaya_jax.data.worked_traces import TRACES, right_trace, wrong_trace
from zaya_jax.inference.local_rollouts import LocalRollouts
from zaya_jax.inference.request import Request
from zaya_jax.inference.rollouts import Budget

TOKENIZER = load_tokenizer("bytes")
SMALL = AggregationSettings(subset=3, tail=8)


def record(right: int = 4, wrong: int = 4, **changes: Any) -> dict[str, Any]:
    made = [
        {"reasoning": f"long thought number {n}", "answer": f"a{n}", "correct": n < right}
        for n in range(right + wrong)
    ]
    return {"problem": "What?", "candidates": made} | changes


def rows(fields: dict[str, Any], settings: AggregationSettings) -> list[tuple[str, str, str]]:
    """Prompt, reasoning and answer of each example."""
    made = aggregation_rows(parse_record(fields), settings, TOKENIZER)
    pairs = [row["messages"] for row in made]
    return [(user["content"], best["reasoning"], best["content"]) for user, best in pairs]


def attempts(prompt: str) -> list[str]:
    parts = prompt.split(" ---\n")[1:]
    return [part.split("\n\n", 1)[0] for part in parts]


def test_the_prompt_is_token_for_token_that_of_inference() -> None:
    asked: list[Request] = []

    class Service:
        async def complete(self, request: Request) -> SimpleNamespace:
            asked.append(request)
            return SimpleNamespace(tokens=[])

    row = next(aggregation_rows(parse_record(record()), SMALL, TOKENIZER))
    shown = [Piece(text + "\n") for text in attempts(row["messages"][0]["content"])]
    assert len(shown) == 3
    engine = LocalRollouts(Service(), TOKENIZER)  # type: ignore[arg-type]
    asyncio.run(engine.rollout(aggregation_prompt("What?", shown), Budget(4, 0), 0))
    ids, learnt = ChatTemplate(TOKENIZER).render(parse_conversation(row)).arrays()
    prompt = len(asked[0].tokens)
    assert tuple(ids[:prompt].tolist()) == tuple(asked[0].tokens)
    assert not learnt[:prompt].any()
    assert learnt[prompt]


def test_a_right_candidate_is_the_target_and_others_lend_their_tails() -> None:
    made = rows(record(), dataclasses.replace(SMALL, examples=60))
    counts = set()
    for prompt, reasoning, answer in made:
        own = int(answer[1:])
        assert own < 4
        assert reasoning == f"long thought number {own}"
        drawn = [int(text.split()[-1]) for text in attempts(prompt)]
        assert attempts(prompt) == [f"umber {n}" for n in drawn]  # and a line break: 8 tokens
        assert len(set(drawn)) == 3
        assert own not in drawn
        counts.add(sum(n < 4 for n in drawn))
    assert counts == {0, 1, 2, 3}


def test_draws_depend_on_the_seed_and_on_nothing_else() -> None:
    several = dataclasses.replace(SMALL, examples=4)
    assert rows(record(), several) == rows(record(), several)
    assert rows(record(), SMALL) == rows(record(), several)[:1]
    assert rows(record(), several) != rows(record(), dataclasses.replace(several, seed=1))


def test_sizes_are_drawn_evenly_where_asked_to() -> None:
    settings = dataclasses.replace(SMALL, least_subset=1, examples=40)
    sizes = {len(attempts(prompt)) for prompt, _, _ in rows(record(), settings)}
    assert sizes == {1, 2, 3}
    assert len(attempts(rows(record(1, 1), SMALL)[0][0])) == 1


def test_nothing_need_be_verified() -> None:
    unknown = record()
    for one in unknown["candidates"]:
        del one["correct"]
    made = rows(unknown, dataclasses.replace(SMALL, examples=60))
    assert {int(answer[1:]) for _, _, answer in made} == set(range(8))


def test_a_budget_cuts_before_the_tail_and_finished_attempts_may_show_answers() -> None:
    cut = dataclasses.replace(SMALL, thinking_budget=12)
    assert set(attempts(rows(record(), cut)[0][0])) == {" thought"}
    answers = dataclasses.replace(SMALL, pass_answers=1)
    assert all(text.startswith("a") for text in attempts(rows(record(), answers)[0][0]))
    both = dataclasses.replace(cut, pass_answers=1)
    assert set(attempts(rows(record(), both)[0][0])) == {" thought"}


def test_a_cut_leaves_no_half_characters() -> None:
    greek = record()
    for one in greek["candidates"]:
        one["reasoning"] = "αβγδεζηθικ"
    assert set(attempts(rows(greek, SMALL)[0][0])) == {"θικ"}  # 8 bytes: half of η goes
    cut = dataclasses.replace(SMALL, thinking_budget=11)
    assert set(attempts(rows(greek, cut)[0][0])) == {"γδε"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"problem": 5}, "'problem' is int"),
        ({"problem": " "}, "'problem' is empty"),
        ({"candidates": None}, "no list of two or more"),
        ({"candidates": [{"reasoning": "r", "answer": "a"}]}, "no list of two or more"),
        ({"candidates": ["x", "y"]}, "candidate 0 is str"),
        ({"candidates": [{"answer": "a"}] * 2}, "candidate 0: 'reasoning' is NoneType"),
        ({"candidates": [{"reasoning": "r", "answer": ""}] * 2}, "candidate 0: the answer is"),
        ({"candidates": [{"reasoning": "\ud800", "answer": "a"}] * 2}, "half of a surrogate"),
        (
            {"candidates": [{"reasoning": "r", "answer": "a", "correct": 1}] * 2},
            "'correct' is 1, neither",
        ),
        (record(0, 3), "no candidate is right"),
    ],
)
def test_a_record_that_teaches_nothing_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        parse_record(record() | fields)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="tail=0: must be at least 1"):
        AggregationSettings(tail=0)
    with pytest.raises(ConfigError, match="least_subset=5 is above subset=4"):
        AggregationSettings(least_subset=5)
    for source, message in (
        ("aggregation:chain_sum?subset=0", "subset=0"),
        ("aggregation:chain_sum?subset=x", "'x' is not an integer"),
        ("aggregation:chain_product", "none of: chain_sum"),
        ("aggregation:no_such.jsonl", "does not exist"),
        ("aggregation:no_such.jsonl?size=3", "takes no option size"),
    ):
        with pytest.raises(DataError, match=message):
            list(read_aggregation(source, TOKENIZER))


@pytest.mark.parametrize("task", TRACES)
def test_generated_candidates_are_what_they_claim(task: str) -> None:
    made = list(candidate_records(task, task, {"size": 40, "seed": 3}, 6))
    assert made == list(candidate_records(task, task, {"size": 40, "seed": 3}, 6))
    shares = set()
    for fields in made:
        right = [one for one in fields["candidates"] if one["correct"]]
        (answer,) = {one["answer"] for one in right}
        assert all(one["answer"] != answer for one in fields["candidates"] if not one["correct"])
        shares.add(len(right))
    assert shares == {1, 2, 3, 4, 5, 6}


def test_a_slip_spares_what_comes_before_it_and_is_followed_faithfully() -> None:
    metadata = {"expression": "3 + 4 - 2 + 8"}
    assert right_trace("chain_sum", metadata).reasoning == "3 + 4 = 7\n7 - 2 = 5\n5 + 8 = 13"
    for seed in range(20):
        worked = wrong_trace("chain_sum", metadata, random.Random(seed))
        wrong, total = 0, "3"
        for line in worked.reasoning.splitlines():
            terms, result = line.split(" = ")
            assert terms.split()[0] == total
            wrong += eval(terms) != int(result)
            total = result
        assert wrong == 1
        assert worked.answer == total
    alike = wrong_trace("spell_backward", {"word": "aaa"}, random.Random(0))
    assert alike.answer == "aaaa"  # no swap shows


def test_the_command_writes_what_a_run_reads_as_a_source(tmp_path: Path) -> None:
    path, output = tmp_path / "records.jsonl", tmp_path / "examples.jsonl"
    lines = [json.dumps(record(problem=f"What is {n}?")) for n in range(12)]
    path.write_text("\n".join([*lines, '{"problem": "?"}']) + "\n")
    options = ["--tokenizer", "bytes", "--subset", "3", "--tail", "8"]
    files = ["--source", str(path), "--output", str(output)]
    assert main([*files, *options]) == 0
    written = [json.loads(line) for line in output.read_text().splitlines()]
    read = list(read_aggregation(f"aggregation:{path}?subset=3&tail=8", TOKENIZER))
    assert written == [row.fields for row in read if isinstance(row, Row)]
    assert [row.place for row in read if isinstance(row, BadRow)] == [f"{path}:13"]
    config = DataConfig(
        tokenizer="bytes",
        sequence_length=1_024,
        packing="planned",  # type: ignore[arg-type]
        mixture=(f"aggregation:{path}?subset=3&tail=8=1",),
    )
    loaded = load_text(config)
    assert loaded.sources[0].name == f"aggregation:{path}"
    assert len(loaded.sources[0].train) + len(loaded.sources[0].validation) == 12
    assert f"1 unusable rows were left out: {path}:13: 'candidates' is no list" in loaded.notes[0]
    assert main([*files, *options, "--prompts-only"]) == 0
    asked = [json.loads(line)["messages"] for line in output.read_text().splitlines()]
    assert asked == [row["messages"][:1] for row in written]


def test_a_failed_command_leaves_nothing(tmp_path: Path) -> None:
    path, output = tmp_path / "records.jsonl", tmp_path / "examples.jsonl"
    path.write_text(json.dumps(record(0, 2)) + "\n")
    command = ["--source", str(path), "--output", str(output), "--tokenizer", "bytes"]
    for limit, message in (("9", "gives no example: .*no candidate is right"), ("0", "max_bad")):
        with pytest.raises(DataError, match=message):
            main([*command, "--max-bad-rows", limit])
    assert list(tmp_path.iterdir()) == [path]
