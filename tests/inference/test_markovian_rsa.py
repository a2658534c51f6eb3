"""Markovian RSA against an engine whose every word is known."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inference.scripted import TEMPLATE, ScriptedEngine
from zaya_jax.config import ConfigError
from zaya_jax.data.aggregation_prompt import aggregation_prompt
from zaya_jax.inference.markovian_rsa import RSAResult, draw_subsets, markovian_rsa
from zaya_jax.inference.rollouts import Budget, RolloutEngine, RolloutError
from zaya_jax.inference.rsa_settings import RSA_PRESETS, RSASettings, rsa_preset

PROBLEM = "what is six times seven"
SMALL = RSASettings(
    rounds=2, population=5, subset=3, thinking_budget=20, tail=6, answer_budget=9, seed=4
)


def run(engine: ScriptedEngine, settings: RSASettings = SMALL, trace: Any = None) -> RSAResult:
    return asyncio.run(markovian_rsa(engine, PROBLEM, settings, trace))


def test_each_round_reads_the_tails_it_drew_and_nothing_else() -> None:
    engine = ScriptedEngine(lengths=(30, 4, 15))
    result = run(engine)
    assert isinstance(engine, RolloutEngine)
    assert [len(population) for population in result.populations] == [5, 5, 5]
    assert [call[0][0].text for call in engine.calls[:5]] == [PROBLEM] * 5
    for number in (1, 2):
        expected = draw_subsets(SMALL, number, range(5))
        for index, candidate in enumerate(result.populations[number]):
            assert (candidate.round, candidate.index) == (number, index)
            assert candidate.drawn == expected[index]
            prompt, _, _ = engine.calls[5 * number + index]
            read = [piece.tokens for piece in prompt if piece.tokens is not None]
            before = [result.populations[number - 1][other].rollout for other in candidate.drawn]
            assert read == [rollout.reasoning[-6:] for rollout in before if rollout]
            assert sum(PROBLEM in piece.text for piece in prompt) == 1


def test_budgets_are_those_of_the_stage() -> None:
    engine = ScriptedEngine()
    run(engine)
    budgets = [budget for _, budget, _ in engine.calls]
    assert budgets == [Budget(20, 0)] * 10 + [Budget(20, 9)] * 5


def test_every_token_is_accounted_for() -> None:
    engine = ScriptedEngine(lengths=(30, 4, 15))
    spent = run(engine).spent
    # Per call: 30 cut at 20, 4 and its close, 15 and its close; two more for an answer.
    assert spent.new_tokens == sum((20, 5, 16)[call % 3] for call in range(15)) + 5 * 2
    lengths = [engine.length(prompt) for prompt, _, _ in engine.calls]
    assert spent.prefill_tokens == sum(lengths)
    assert spent.peak_context <= max(lengths) + 22


def test_prompts_stay_bounded_however_long_the_reasoning() -> None:
    engine = ScriptedEngine(lengths=(10_000,))
    run(engine, dataclasses.replace(SMALL, thinking_budget=5_000, rounds=4))
    overhead = engine.length(aggregation_prompt("", [])) - TEMPLATE + 3 * 4  # and three headings
    bound = len(PROBLEM.split()) + 3 * 6 + TEMPLATE + overhead
    assert max(engine.length(prompt) for prompt, _, _ in engine.calls) <= bound


def test_an_engine_that_breaks_the_bound_is_found_out() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run(ScriptedEngine(oversized=1))
    assert "exceeds" in str(caught.value.exceptions[0])


def test_draws_are_uniform_without_replacement() -> None:
    settings = dataclasses.replace(SMALL, population=6_000, subset=2)
    draws = draw_subsets(settings, 1, range(4))
    assert all(len(set(draw)) == 2 for draw in draws)
    counts = collections.Counter(tuple(sorted(draw)) for draw in draws)
    pairs = list(itertools.combinations(range(4), 2))
    statistic = sum((counts[pair] - 1_000) ** 2 / 1_000 for pair in pairs)
    assert statistic < 25.74  # chi-squared, five degrees of freedom, 99.99%
    assert draws == draw_subsets(settings, 1, range(4))
    assert draws != draw_subsets(settings, 2, range(4))


def test_no_rounds_is_parallel_sampling() -> None:
    engine = ScriptedEngine()
    result = run(engine, dataclasses.replace(SMALL, rounds=0))
    assert [call[:2] for call in engine.calls] == [
        (engine.calls[0][0], Budget(20, 9))
    ] * SMALL.population
    assert len({seed for _, _, seed in engine.calls}) == SMALL.population
    assert result.answers == [f"answer {seed}" for _, _, seed in engine.calls]


def test_a_subset_of_one_continues_its_own_tail() -> None:
    result = run(ScriptedEngine(), dataclasses.replace(SMALL, subset=1))
    for population in result.populations[1:]:
        assert [candidate.drawn for candidate in population] == [(i,) for i in range(5)]


def test_a_tail_as_long_as_the_budget_passes_on_everything() -> None:
    engine = ScriptedEngine(lengths=(30, 7))
    result = run(engine, dataclasses.replace(SMALL, tail=20))
    read = {piece.tokens for prompt, _, _ in engine.calls[5:10] for piece in prompt if piece.tokens}
    whole = {own.rollout.reasoning for own in result.populations[0] if own.rollout}
    assert read <= whole
    assert max(len(tokens or ()) for tokens in read) == 20


def test_finished_candidates_may_pass_on_their_answers() -> None:
    engine = ScriptedEngine(lengths=(30, 7))
    settings = dataclasses.replace(SMALL, pass_answers=True)
    result = run(engine, settings)
    assert engine.calls[0][1] == Budget(20, 6)  # an answer is no longer than the tail it replaces
    for index, candidate in enumerate(result.populations[1]):
        prompt = engine.calls[5 + index][0]
        for other in candidate.drawn:
            rollout = result.populations[0][other].rollout
            assert rollout is not None
            texts = [piece.text for piece in prompt]
            assert (rollout.answer in texts) == rollout.closed


def test_one_lost_candidate_does_not_lose_the_run() -> None:
    """Call 1 fails once and is tried again; call 2 and its second attempt never return."""
    engine = ScriptedEngine(failures=frozenset({1}), slow=frozenset({2, 6}))
    settings = dataclasses.replace(SMALL, timeout=0.05)
    result = run(engine, settings)
    lost = [own.index for own in result.populations[0] if own.rollout is None]
    assert lost == [2]
    assert "timeout=0.05" in result.populations[0][2].error
    seeds = [seed for _, _, seed in engine.calls]
    assert len(set(seeds)) == len(seeds)
    assert all(2 not in own.drawn for own in result.populations[1])
    assert len(result.answers) == 5


def test_a_round_without_survivors_ends_the_run() -> None:
    engine = ScriptedEngine(failures=frozenset(range(10)))
    with pytest.raises(RolloutError, match="all 5 rollouts of round 0 failed"):
        run(engine)


def test_an_interrupted_run_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    whole = run(ScriptedEngine(lengths=(30,)), trace=trace)
    lines = trace.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 15
    trace.write_text("".join(lines[:8]) + lines[8][:20])
    again = ScriptedEngine(lengths=(30,))
    resumed = run(again, trace=trace)
    assert len(again.calls) == 15 - 7
    assert resumed.answers == whole.answers
    assert [own.drawn for own in resumed.populations[2]] == [
        own.drawn for own in whole.populations[2]
    ]
    assert resumed.spent.new_tokens == whole.spent.new_tokens
    assert len(trace.read_text().splitlines()) == 1 + 15


def test_a_trace_belongs_to_its_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    run(ScriptedEngine(), trace=trace)
    with pytest.raises(ConfigError, match="begun with tail=6, now 5"):
        run(ScriptedEngine(), dataclasses.replace(SMALL, tail=5), trace)
    run(ScriptedEngine(), dataclasses.replace(SMALL, timeout=99.0), trace)
    with pytest.raises(ConfigError, match="another problem"):
        asyncio.run(markovian_rsa(ScriptedEngine(), "other", SMALL, trace))


def test_the_vote_goes_to_the_most_frequent_answer() -> None:
    result = run(ScriptedEngine())
    made = [own.rollout for own in result.populations[-1]]
    answers = ["7", "42", "42 ", "7", "42"]
    final = tuple(
        dataclasses.replace(own, rollout=dataclasses.replace(rollout, answer=answer))
        for own, rollout, answer in zip(result.populations[-1], made, answers, strict=True)
        if rollout is not None
    )
    assert dataclasses.replace(result, populations=(final,)).vote() == "42"


def test_presets_are_the_published_settings() -> None:
    rows = {
        name: (own.rounds, own.population, own.subset, own.thinking_budget, own.tail)
        for name, own in RSA_PRESETS.items()
    }
    assert rows == {
        "light": (2, 8, 4, 8_192, 4_096),
        "default": (2, 16, 4, 16_384, 4_096),
        "headline": (2, 16, 4, 40_960, 4_096),
        "apex_xhigh": (8, 32, 4, 32_768, 4_096),
    }
    assert {own.answer_budget for own in RSA_PRESETS.values()} == {40_960}
    with pytest.raises(ConfigError, match="'fast' is unknown"):
        rsa_preset("fast")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": -1}, "rounds=-1"),
        ({"population": 0}, "population=0"),
        ({"subset": 6}, "subset=6 tails cannot be drawn from population=5"),
        ({"tail": 21}, "tail=21 is longer than thinking_budget=20"),
        ({"answer_budget": 0}, "answer_budget=0"),
    ],
)
def test_impossible_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SMALL, **changes)


def test_draws_of_different_seeds_differ() -> None:
    seeds = [dataclasses.replace(SMALL, seed=seed) for seed in range(20)]
    draws = {tuple(draw_subsets(own, 1, range(5))) for own in seeds}
    assert len(draws) == 20
    assert np.unique([len(draw) for draw in next(iter(draws))]).tolist() == [3]
