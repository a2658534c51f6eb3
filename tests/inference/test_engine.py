"""The engine's answers are the trainer's, whatever joins, leaves, waits or is computed anew."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.inference.models import TINY, assert_as_trained, prompt, tiny_variables
from zaya_jax.config import ConfigError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import (
    Completion,
    FinishReason,
    Request,
    RequestError,
    SamplingParams,
)
from zaya_jax.inference.settings import EngineSettings, warm_up_shapes
from zaya_jax.inference.text import allowed_tokens

SETTINGS = EngineSettings(
    slots=4,
    page_size=4,
    cache_tokens=256,
    prefill_chunk=16,
    decode_steps=4,
    least_rows=4,
    least_table=24,
)


@pytest.fixture(scope="module")
def shared() -> Engine:
    return Engine(TINY, tiny_variables(), settings=SETTINGS)


@pytest.fixture
def engine(shared: Engine) -> Engine:
    """One engine for all tests; each leaves it as it found it."""
    assert shared.idle
    assert shared.statistics["free_slots"] == SETTINGS.slots
    shared.load_weights(tiny_variables())
    assert shared.statistics["pages_in_use"] == 0
    assert shared.statistics["sliding_pages_in_use"] == 0
    return shared


def request(seed: int, length: int, tokens: int, **sampling: Any) -> Request:
    params = SamplingParams(max_tokens=tokens, seed=seed, **sampling)
    return Request(prompt(seed, length), params)


MIXED = [
    request(0, 1, 9, temperature=0.0),
    request(1, 30, 5),
    request(2, 17, 20, temperature=0.0),
    request(3, 2, 1),
    request(4, 23, 12),
    request(5, 16, 8, temperature=0.0),
    request(6, 5, 30),
]


def test_a_mixed_batch_has_the_trainers_numbers(engine: Engine) -> None:
    for own, completion in zip(MIXED, engine.generate(MIXED), strict=True):
        assert completion.finish_reason is FinishReason.LENGTH
        assert len(completion.tokens) == own.sampling.max_tokens
        assert set(completion.versions) == {engine.version}
        assert_as_trained(tiny_variables(), completion, greedy=own.sampling.temperature == 0)


def test_the_company_changes_nothing(engine: Engine) -> None:
    together = engine.generate(MIXED)
    alone = [engine.generate([own])[0] for own in MIXED]
    assert [own.tokens for own in together] == [own.tokens for own in alone]


def test_a_prefix_is_reused_with_its_state_and_routes(engine: Engine) -> None:
    first = engine.generate([request(2, 17, 20, temperature=0.0)])[0]
    longer = (*first.prompt, *first.tokens[:9])
    again = engine.generate([Request(longer, SamplingParams(max_tokens=11, temperature=0.0))])[0]
    assert again.cached_tokens == 24  # of 26 tokens, the last of which is always computed
    assert again.tokens == first.tokens[9:]
    assert_as_trained(tiny_variables(), again, greedy=True)


def test_prefixes_do_not_outlive_their_weights(engine: Engine) -> None:
    own = request(2, 17, 8, temperature=0.0)
    engine.generate([own])
    version = engine.load_weights(tiny_variables(9))
    completion = engine.generate([own])[0]
    assert completion.cached_tokens == 0
    assert set(completion.versions) == {version}
    assert_as_trained(tiny_variables(9), completion, greedy=True)


def test_weights_change_under_a_running_request(engine: Engine) -> None:
    number = engine.submit(request(1, 9, 12, temperature=0.0))
    before = engine.version
    [update] = engine.step()
    assert update.number == number
    engine.load_weights(tiny_variables(9))
    while not engine.idle:
        updates = engine.step()
    assert updates[-1].completion.versions == [before] * 4 + [before + 1] * 8
    # Pages that two versions wrote are no prefix of either.
    assert engine.statistics["remembered_pages"] == 0


def test_the_youngest_gives_way_when_memory_runs_out() -> None:
    small = dataclasses.replace(SETTINGS, cache_tokens=96, prefix_cache=False)
    engine = Engine(TINY, tiny_variables(), settings=small)
    requests = [request(seed, 9, 40, temperature=float(seed % 2)) for seed in range(4)]
    waited = False
    numbers = [engine.submit(own) for own in requests]
    finished: dict[int, Completion] = {}
    while not engine.idle:
        for update in engine.step():
            if update.completion.finish_reason:
                finished[update.number] = update.completion
        running = engine.statistics["running"]
        waited |= running < 4 - len(finished)
    assert waited
    assert engine.statistics["pages_in_use"] == 0
    for seed, number in enumerate(numbers):
        assert_as_trained(tiny_variables(), finished[number], greedy=seed % 2 == 0)


def test_cancelling_frees_slot_and_pages(engine: Engine) -> None:
    numbers = [engine.submit(request(seed, 9, 40)) for seed in range(5)]
    engine.step()
    for number in (numbers[1], numbers[4]):  # one that runs, one that waits
        update = engine.cancel(number)
        assert update is not None
        assert update.completion.finish_reason is FinishReason.CANCELLED
        assert engine.cancel(number) is None
    while not engine.idle:
        engine.step()
    statistics = engine.statistics
    assert statistics["free_slots"] == SETTINGS.slots
    assert statistics["pages_in_use"] == statistics["remembered_pages"]


def test_a_stop_token_is_the_last_one(engine: Engine) -> None:
    own = request(2, 17, 20, temperature=0.0)
    tokens = engine.generate([own])[0].tokens
    stop = tokens[5]
    sampling = dataclasses.replace(own.sampling, stop_tokens=(stop, 47))
    completion = engine.generate([Request(own.tokens, sampling)])[0]
    assert completion.finish_reason is FinishReason.STOP
    assert completion.tokens == tokens[: tokens.index(stop) + 1]
    assert len(completion.routes) == len(own.tokens) + len(completion.tokens) - 1


def test_programs_stay_few() -> None:
    """Lengths and batch sizes of every kind end up in a handful of shapes."""
    settings = EngineSettings(slots=16, cache_tokens=4_096)
    tables = {settings.table_bucket(pages) for pages in range(1, settings.pages + 1)}
    rows = {settings.row_bucket(count, 16) for count in range(1, 17)}
    chunks = {settings.token_bucket(count) for count in range(1, settings.prefill_chunk + 1)}
    assert tables == {4, 8, 16, 32, 64, 128, 256}
    assert rows == {1, 4, 16}
    assert chunks == {16, 64, 256}
    shapes = warm_up_shapes(settings, 4_096)
    assert len(shapes.decode) == len(tables) * len(rows)
    assert len(shapes.prefill) == len(tables) * 2 * len(chunks)


def test_warming_up_compiles_what_is_needed(engine: Engine) -> None:
    said: list[str] = []
    engine.programs.clear()
    engine.warm_up(20, say=said.append)
    assert len(said) == len(engine.programs) == 2
    warm = set(engine.programs)
    engine.generate([request(1, 9, 10, temperature=0.0)])
    assert engine.programs == warm


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Request(()), "the prompt is empty"),
        (Request((1, 48)), r"token id 48 is outside the vocabulary 0\.\.47"),
        (Request((1,), SamplingParams(logit_bias={50: 1.0})), "token id 50 is outside"),
        (Request((1,), SamplingParams(stop_tokens=(2**40,))), "token id 1099511627776 is outside"),
        (Request((1,) * 90, SamplingParams(max_tokens=20)), "exceed the 96 tokens"),
    ],
)
def test_impossible_requests_are_refused(engine: Engine, own: Request, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.submit(own)
    assert engine.idle


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 2**40),
        ("temperature", 10**400),
        ("min_p", "0.1"),
        ("repetition_penalty", 0),
        ("logit_bias", {1: 101.0}),
        ("seed", 2**64),
        ("stop", ("",)),
        ("stop_tokens", tuple(range(9))),
        ("top_logprobs", 21),
    ],
)
def test_wrong_sampling_parameters_are_named(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{field}"):
        SamplingParams(**{field: value})


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(ConfigError, match="slots=0"):
        EngineSettings(slots=0)
    with pytest.raises(ConfigError, match="two pages of 64"):
        EngineSettings(page_size=64, cache_tokens=100)


def test_ids_without_a_token_are_not_allowed() -> None:
    tokenizer = load_tokenizer("bytes")
    allowed = allowed_tokens(TINY.replace(vocab_size=300), tokenizer)
    forbidden = {tokenizer.pad_id, tokenizer.bos_id, *range(tokenizer.vocab_size, 300)}
    assert set(np.flatnonzero(~allowed)) == forbidden - {tokenizer.eos_id}
