"""Runs of a task: killed and taken up again, failing, refused, graded by a broken grader."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.scripted_model import ScriptedModel
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.items import Item
from zaya_jax.evaluation.methods import derived_seed, make_method
from zaya_jax.evaluation.records import Record
from zaya_jax.evaluation.run import Job, run_job
from zaya_jax.evaluation.settings import EvaluationConfig, RSAConfig, TaskConfig
from zaya_jax.evaluation.summary import summarise
from zaya_jax.evaluation.table import write_results
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Score

TASK = TaskConfig(source="none", samples=3)
SMALL_RSA = RSAConfig(rounds=1, population=4, subset=2, thinking_budget=20, tail=6, answer_budget=9)


class Numbers:
    """Problem n is solved by a box that holds n; the grader breaks on problem `broken`."""

    def __init__(self, count: int = 5, broken: int = -1) -> None:
        self.items: Sequence[Item] = [Item(f"p{n}", f"Problem {n}", n) for n in range(count)]
        self._broken = broken

    def grade(self, item: Item, answer: str) -> Score:
        if item.reference == self._broken:
            raise BrokenEnvironmentError("the grader fell over")
        return Score(float(answer == f"\\boxed{{{item.reference}}}"), "compared")

    def vote(self, answer: str) -> str | None:
        return answer or None

    def close(self) -> None:
        pass


def run(
    workdir: Path, model: ScriptedModel, *, method: str = "none", task: Any = None, **changes: Any
) -> list[Record]:
    config = EvaluationConfig({"numbers": TASK}, init_from="x", rsa=SMALL_RSA, **changes)
    made = make_method(method, model, config, TASK.sampling)
    job = Job("numbers", task or Numbers(), TASK, made, method)
    return asyncio.run(run_job(job, config, model.identity, workdir))


def tables(workdir: Path, records: list[Record], method: str = "none") -> dict[str, bytes]:
    summary = summarise("numbers", "final_answer", method, records, resamples=200)
    return {path.name: path.read_bytes() for path in write_results(workdir, [summary], {"a": 1})}


@pytest.mark.parametrize("method", ["none", "majority"])
def test_a_killed_run_gives_the_tables_of_one_that_was_not(tmp_path: Path, method: str) -> None:
    whole = tables(tmp_path, run(tmp_path / "whole", ScriptedModel(), method=method), method)
    log = tmp_path / "parts" / "rollouts" / "numbers.jsonl"
    known = []
    for _ in range(30):
        try:
            model = ScriptedModel(stop_after=6)
            records = run(tmp_path / "parts", model, method=method, concurrency=2)
        except KeyboardInterrupt:
            known.append(log.read_bytes().count(b"\n"))
            # A kill may come in the middle of a line.
            log.write_bytes(log.read_bytes() + b'{"item": "p')
        else:
            break
    assert len(known) >= 2
    assert known == sorted(known)
    assert tables(tmp_path, records, method) == whole
    # Nothing is asked again when all is known.
    again = ScriptedModel(stop_after=0)
    assert tables(tmp_path, run(tmp_path / "parts", again, method=method), method) == whole


def test_markovian_rsa_scores_the_mean_of_its_final_candidates(tmp_path: Path) -> None:
    records = run(tmp_path, ScriptedModel(), method="light")
    assert [len(record.answers) for record in records] == [4] * 15
    assert len(list((tmp_path / "traces" / "numbers").glob("*.jsonl"))) == 15
    summary = summarise("numbers", "final_answer", "light", records, resamples=200)
    rewards = [answer.reward for record in records for answer in record.answers]
    assert summary.score == pytest.approx(sum(rewards) / len(rewards))
    assert summary.answers == 12
    assert run(tmp_path, ScriptedModel(), method="light") == records


def test_failures_do_not_stop_the_others_and_are_made_up_for(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"2 of 15 tries failed.*same command"):
        run(tmp_path, ScriptedModel(failing=frozenset({1, 4})))
    again = ScriptedModel()
    records = run(tmp_path, again)
    assert again.calls == 2
    fresh = run(tmp_path / "fresh", ScriptedModel())
    assert [dataclasses.replace(record, seconds=0.0) for record in records] == [
        dataclasses.replace(record, seconds=0.0) for record in fresh
    ]


def test_a_dead_server_is_not_asked_for_ever(tmp_path: Path) -> None:
    model = ScriptedModel(failing=frozenset(range(100)))
    with pytest.raises(EvaluationError, match="2 of 15 tries failed"):
        run(tmp_path, model, most_failures=2, concurrency=1)
    assert model.calls <= 3


def test_a_refused_question_counts_as_wrong_and_is_told(tmp_path: Path) -> None:
    records = run(tmp_path, ScriptedModel(refused="Problem 2"))
    refused = [record for record in records if record.answers[0].refused]
    assert {record.item for record in refused} == {"p2"}
    summary = summarise("numbers", "final_answer", "none", records, resamples=200)
    assert summary.refused == pytest.approx(3 / 15)
    with pytest.raises(EvaluationError, match="refused every problem: the prompt is too long"):
        run(tmp_path / "all", ScriptedModel(refused="Problem"))


def test_a_broken_grader_is_told_apart_from_a_wrong_answer(tmp_path: Path) -> None:
    records = run(tmp_path, ScriptedModel(), task=Numbers(broken=1))
    summary = summarise("numbers", "final_answer", "none", records, resamples=200)
    assert summary.broken == pytest.approx(3 / 15)
    assert {answer.reason for r in records if r.item == "p1" for answer in r.answers} == {
        "the grader fell over"
    }


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"seed": 1}, "seed"), ({"task": Numbers(4)}, "problems"), ({"method": "majority"}, "method")],
)
def test_a_log_of_other_settings_is_not_mixed_in(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    run(tmp_path, ScriptedModel())
    with pytest.raises(EvaluationError, match=rf"begun with {name}=.*another --workdir"):
        run(tmp_path, ScriptedModel(), **changes)


def test_a_damaged_log_is_named_with_its_line(tmp_path: Path) -> None:
    run(tmp_path, ScriptedModel())
    log = tmp_path / "rollouts" / "numbers.jsonl"
    lines = log.read_text().splitlines()
    for wrong in ("nonsense", '{"item": "p0"}'):
        log.write_text("\n".join([lines[0], wrong, *lines[2:]]) + "\n")
        with pytest.raises(EvaluationError, match="line 2 is no record"):
            run(tmp_path, ScriptedModel())


def test_seeds_depend_on_every_part() -> None:
    assert derived_seed("a", "b", 1, 0) == derived_seed("a", "b", 1, 0)
    others = {derived_seed(*parts) for parts in [("a", "b", 2), ("ab", "", 1), ("a", "b", 1)]}
    assert len(others) == 3
    assert all(0 <= seed < 2**31 for seed in others)
