"""Coroutines share an engine; Markovian RSA runs on it within its bounds."""

from __future__ import annotations

import asyncio

import pytest

from tests.inference.models import text_engine
from zaya_jax.data.aggregation_prompt import Piece
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.local_rollouts import LocalRollouts
from zaya_jax.inference.markovian_rsa import RSAResult, markovian_rsa
from zaya_jax.inference.request import Completion, Request, RequestError, SamplingParams
from zaya_jax.inference.rollouts import Budget, RolloutEngine, RolloutError
from zaya_jax.inference.rsa_settings import RSASettings
from zaya_jax.inference.service import EngineService, ServiceError

BYTES = load_tokenizer("bytes")


def request(text: str, tokens: int, seed: int = 0) -> Request:
    return Request(
        (BYTES.bos_id, *BYTES.encode(text)), SamplingParams(max_tokens=tokens, seed=seed)
    )


def test_coroutines_share_the_engine_and_cancelling_one_hurts_nobody() -> None:
    async def run(service: EngineService) -> list[Completion]:
        async def lose_patience() -> None:
            async for _ in service.stream(request("gone", 200)):
                raise TimeoutError

        lost = asyncio.create_task(lose_patience())
        answers = await asyncio.gather(
            *(service.complete(request(f"prompt {n}", 9, seed=n)) for n in range(3))
        )
        with pytest.raises(TimeoutError):
            await lost
        with pytest.raises(RequestError, match="exceed"):
            await service.complete(request("long", 1_000))
        while not await service.call(lambda engine: engine.idle):
            await asyncio.sleep(0.01)
        return answers

    engine = text_engine()
    with EngineService(engine) as service:
        answers = asyncio.run(run(service))
    alone = engine.generate([request(f"prompt {n}", 9, seed=n) for n in range(3)])
    assert [own.tokens for own in answers] == [own.tokens for own in alone]
    assert engine.statistics["free_slots"] == engine.settings.slots


def test_who_reads_late_gets_every_update_as_it_was() -> None:
    async def run(service: EngineService) -> tuple[str, list[int], Completion]:
        texts, lengths = [], []
        async for update in service.stream(request("late", 40, seed=5)):
            while not service.engine.idle:
                await asyncio.sleep(0.01)
            texts.append(update.text)
            lengths.append(len(update.completion.tokens))
        return "".join(texts), lengths, update.completion

    with EngineService(text_engine()) as service:
        text, lengths, completion = asyncio.run(run(service))
    assert text == completion.text
    assert lengths == sorted(set(lengths))
    assert len(lengths) > 1


def test_a_failed_engine_is_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MemoryError("no memory")

    engine = text_engine()
    monkeypatch.setattr(engine, "step", fail)

    async def run(service: EngineService) -> None:
        with pytest.raises(ServiceError, match="no memory"):
            await service.complete(request("a", 3))
        with pytest.raises(ServiceError, match="no memory"):
            await service.complete(request("b", 3))

    with EngineService(engine) as service:
        asyncio.run(run(service))
    monkeypatch.undo()
    engine.cancel(engine._submitted - 1)
    assert engine.idle


def test_markovian_rsa_on_our_own_engine() -> None:
    settings = RSASettings(
        rounds=1, population=3, subset=2, thinking_budget=12, tail=6, answer_budget=5, seed=1
    )

    async def run(service: EngineService) -> RSAResult:
        rollouts = LocalRollouts(service, BYTES)
        assert isinstance(rollouts, RolloutEngine)
        return await markovian_rsa(rollouts, "1 + 1?", settings)

    with EngineService(text_engine()) as service:
        results = [asyncio.run(run(service)) for _ in range(2)]
    first, second = results
    assert first.populations[1][0].rollout is not None
    assert [c.rollout for c in first.populations[1]] == [c.rollout for c in second.populations[1]]
    assert len({c.rollout.reasoning for c in first.populations[0] if c.rollout}) == 3
    for population, answers in zip(first.populations, (False, True), strict=True):
        for candidate in population:
            rollout = candidate.rollout
            assert rollout is not None
            assert len(rollout.reasoning) <= 12
            assert rollout.new_tokens <= 12 + answers * 5
            assert rollout.peak_context <= rollout.prompt_tokens + 12 + answers * (5 + 5)
    lengths = [own.rollout.prompt_tokens for own in first.populations[0] if own.rollout]
    frame = len(BYTES.encode("1 + 1?"))
    assert len(set(lengths)) == 1
    assert lengths[0] > frame


def test_tails_enter_prompts_as_the_ids_they_were() -> None:
    """Half a character is no text; its bytes must survive all the same."""
    broken = tuple(BYTES.encode("é")[:1]) * 3

    async def run(service: EngineService) -> None:
        rollouts = LocalRollouts(service, BYTES)
        prompt = (Piece("x"), Piece(rollouts.text_of(broken), broken))
        rollout = await rollouts.rollout(prompt, Budget(3, 0), seed=1)
        assert rollout.prompt_tokens == rollouts.prompt_limit(prompt)
        assert rollouts.prompt_limit(prompt) == rollouts.prompt_limit((Piece("x"),)) + 3
        with pytest.raises(RolloutError, match="exceed"):
            await rollouts.rollout(prompt, Budget(1_000, 0), seed=1)

    with EngineService(text_engine()) as service:
        asyncio.run(run(service))
