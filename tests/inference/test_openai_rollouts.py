"""Markovian RSA over HTTP: the same thoughts as in the engine, the same bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inference.models import text_engine
from tests.inference.test_server import BYTES, KEY, serving
from zaya_jax.data.aggregation_prompt import Piece
from zaya_jax.inference.local_rollouts import LocalRollouts
from zaya_jax.inference.markovian_rsa import markovian_rsa
from zaya_jax.inference.openai_rollouts import OpenAIRollouts
from zaya_jax.inference.rollouts import Budget, RolloutEngine, RolloutError
from zaya_jax.inference.rsa_settings import RSASettings
from zaya_jax.inference.server.app import ServerSettings
from zaya_jax.inference.service import EngineService


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(ServerSettings("tiny", KEY)) as (address, _):
        yield f"{address}/v1"


PROMPT = (Piece("1 + "), Piece("1?"))


def test_reasoning_over_http_is_the_engines(url: str) -> None:
    async def over_http(seed: int) -> tuple[str, bool, int]:
        remote = OpenAIRollouts(url, "tiny", api_key=KEY)
        made = await remote.rollout(PROMPT, Budget(14, 0), seed)
        return remote.text_of(made.reasoning), made.closed, made.new_tokens

    remote = [asyncio.run(over_http(seed)) for seed in range(4)]

    async def local(service: EngineService, seed: int) -> tuple[str, bool, int]:
        rollouts = LocalRollouts(service, BYTES)
        made = await rollouts.rollout(PROMPT, Budget(14, 0), seed)
        texts = [rollouts.text_of((token,)) for token in made.reasoning]
        return "".join(texts), made.closed, made.new_tokens

    with EngineService(text_engine()) as service:
        assert remote == [asyncio.run(local(service, seed)) for seed in range(4)]


def test_markovian_rsa_over_http(url: str, tmp_path: Path) -> None:
    remote = OpenAIRollouts(url, "tiny", api_key=KEY)
    assert isinstance(remote, RolloutEngine)
    settings = RSASettings(
        rounds=1, population=3, subset=2, thinking_budget=10, tail=5, answer_budget=4, seed=1
    )
    result = asyncio.run(markovian_rsa(remote, "1 + 1?", settings, tmp_path / "trace.jsonl"))
    assert len(result.answers) == 3
    for candidate in result.populations[1]:
        assert candidate.rollout is not None
        assert len(candidate.rollout.reasoning) <= 10
        assert candidate.rollout.new_tokens <= 10 + 4


def test_a_server_that_refuses_fails_the_rollout_only(url: str) -> None:
    remote = OpenAIRollouts(url, "other", api_key=KEY)
    with pytest.raises(RolloutError, match="'other' is not served here"):
        asyncio.run(remote.rollout(PROMPT, Budget(4, 0), 1))
