"""Markovian RSA over HTTP: what is asked, what is told, and what happens when a client leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the serve extra")

from tests.inference.scripted import ScriptedEngine
from zaya_jax.inference.rsa_settings import RSA_PRESETS
from zaya_jax.inference.server.protocol import BodyError
from zaya_jax.inference.server.rsa_route import RSACall, rsa_call, rsa_events

GOOD = {"model": "tiny", "problem": "six times seven"}
SMALL = {
    "rounds": 1,
    "population": 3,
    "subset": 2,
    "thinking_budget": 20,
    "tail": 6,
    "answer_budget": 9,
}


def small_call() -> RSACall:
    return rsa_call({**GOOD, "settings": SMALL, "seed": 4})


def told(engine: ScriptedEngine) -> list[Any]:
    async def collect() -> list[str]:
        return [event async for event in rsa_events(engine, small_call())]

    texts = asyncio.run(collect())
    assert all(text.startswith("data: ") and text.endswith("\n\n") for text in texts)
    assert texts[-1] == "data: [DONE]\n\n"
    return [json.loads(text.removeprefix("data: ")) for text in texts[:-1]]


def test_presets_and_changes_make_the_settings() -> None:
    assert rsa_call(GOOD).settings == RSA_PRESETS["light"]
    own = small_call().settings
    assert (own.rounds, own.population, own.tail, own.seed) == (1, 3, 6, 4)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": None}, "model"),
        ({"problem": "  "}, "problem"),
        ({"problem": "\ud800"}, "problem"),
        ({"preset": "huge"}, "preset"),
        ({"preset": []}, "preset"),
        ({"settings": []}, "settings"),
        ({"settings": {"timeout": 1}}, "settings"),
        ({"settings": {"rounds": "2"}}, "settings.rounds"),
        ({"settings": {"rounds": True}}, "settings.rounds"),
        ({"settings": {"population": 0}}, "settings"),
        ({"settings": {"tail": 10**6}}, "settings"),
        ({"settings": {"rounds": 10**6}}, "settings"),
        ({"seed": -1}, "seed"),
        ({"stream": True}, "stream"),
    ],
)
def test_nonsense_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BodyError) as caught:
        rsa_call({**GOOD, **changes})
    assert caught.value.field == field


def test_every_candidate_is_told_and_then_the_result() -> None:
    start, *candidates, result = told(ScriptedEngine(lengths=(30, 4)))
    assert start["kind"] == "start"
    assert start["settings"]["population"] == 3
    places = {(own["round"], own["index"]) for own in candidates}
    assert places == {(t, n) for t in (0, 1) for n in range(3)}
    for own in candidates:
        assert len(own["drawn"]) == 2 * own["round"]
        assert own["tail_tokens"] == len(own["tail"].split()) <= 6
        assert bool(own["answer"]) == (own["round"] == 1)
    assert result["kind"] == "result"
    assert result["vote"] in {own["answer"] for own in candidates}
    assert result["spent"]["new_tokens"] == sum(own["new_tokens"] for own in candidates)


def test_a_lost_round_is_an_error_and_a_lost_candidate_is_none() -> None:
    events = told(ScriptedEngine(failures=frozenset(range(100))))
    assert events[-1]["kind"] == "error"
    assert "all 3 rollouts of round 0 failed" in events[-1]["message"]
    events = told(ScriptedEngine(failures=frozenset({0, 3})))
    assert [own["error"] != "" for own in events[1:-1]].count(True) == 1
    assert events[-1]["kind"] == "result"


def test_a_client_that_leaves_ends_the_run() -> None:
    engine = ScriptedEngine()

    async def leave() -> None:
        events = rsa_events(engine, small_call())
        async for event in events:
            if '"candidate"' in event:
                break
        await events.aclose()  # type: ignore[attr-defined]
        calls = len(engine.calls)
        await asyncio.sleep(0.02)
        assert len(engine.calls) == calls < 6

    asyncio.run(leave())
