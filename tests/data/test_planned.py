"""Planned streams: shares of tokens, exact resumption at any number of hosts, whole examples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_megatron import write_megatron
from zaya_jax.config import ConfigError
from zaya_jax.data import (
    DataConfig,
    DataError,
    check_batch,
    fill_rate,
    load_text,
    training_batches,
    validation_batches,
)
from zaya_jax.data.pipeline import Batch, LoadedText
from zaya_jax.data.planned import PlannedExamples


def _write_chats(path: Path, count: int = 60) -> str:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{n}+{n}?"},
                {"role": "assistant", "reasoning": f"twice {n} " * (n % 7), "content": f"{2 * n}"},
            ]
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    chats = _write_chats(tmp_path_factory.mktemp("data") / "chats.jsonl")
    return DataConfig(
        packing="planned",
        mixture=(f"{chats}=1", "synthetic=3/6:1"),
        tokenizer="bytes",
        max_bytes=40_000,
        sequence_length=160,
        batch_size=4,
        validation_batches=2,
    )


@pytest.fixture(scope="module")
def text(config: DataConfig) -> PlannedExamples:
    return load_text(config)


def _take(config: DataConfig, text: LoadedText, count: int, **hosts: int) -> list[Batch]:
    batches = training_batches(config, text, **hosts)
    taken = [next(batches) for _ in range(count)]
    batches.close()
    return taken


def _same(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("stop", [3, 6, 40])  # 6: where the stage changes; 40: in a later epoch
def test_resumes_exactly(config: DataConfig, text: PlannedExamples, prefetch: int, stop: int):
    config = dataclasses.replace(config, prefetch_batches=prefetch)
    whole = _take(config, text, stop + 4)
    batches = training_batches(config, text)
    for _ in range(stop):
        next(batches)
    state = json.loads(json.dumps(batches.get_state()))
    batches.close()
    resumed = training_batches(dataclasses.replace(config, prefetch_batches=2), text)
    resumed.set_state(state)
    _same([next(resumed) for _ in range(4)], whole[stop:])
    resumed.close()


def _leg(
    config: DataConfig, text: LoadedText, state: dict | None, hosts: int, count: int
) -> tuple[list[Batch], dict]:
    """Global batches that several hosts make together from a saved position, and the next one."""
    streams = [
        training_batches(config, text, process_index=n, process_count=hosts) for n in range(hosts)
    ]
    if state is not None:
        for stream in streams:
            stream.set_state(json.loads(json.dumps(state)))
    taken = []
    for _ in range(count):
        parts = [next(stream) for stream in streams]
        taken.append({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    states = [stream.get_state() for stream in streams]
    assert all(own == states[0] for own in states)  # any host's position is everybody's
    for stream in streams:
        stream.close()
    return taken, states[0]


def _sample_ids(batches: list[Batch]) -> list[bytes]:
    """Which examples, in the order of rows and segments."""
    return [
        row[segments == number].tobytes()
        for batch in batches
        for row, segments in zip(batch["tokens"], batch["segment_ids"], strict=True)
        for number in range(1, segments.max() + 1)
    ]


@pytest.mark.parametrize("packing", ["planned", "online"])
def test_any_number_of_hosts_and_workers_continues_the_same_global_samples(
    config: DataConfig, text: PlannedExamples, packing: str
):
    """Legs end within epochs, one at a change of the mixture's stage."""
    loaded: LoadedText = text
    if packing == "online":
        config = DataConfig(
            source="synthetic",
            tokenizer="bytes",
            max_bytes=15_000,
            sequence_length=160,
            batch_size=4,
            packing_bins=8,
        )
        loaded = load_text(config)
    legs = [(1, 0, 2), (2, 2, 4), (4, 1, 3), (2, 0, 1), (1, 2, 30), (4, 2, 2)]
    whole = _take(config, loaded, sum(count for _, _, count in legs))
    state, joined = None, []
    for number, (hosts, workers, count) in enumerate(legs):
        own = workers if packing == "planned" else 0
        leg = dataclasses.replace(config, workers=own, prefetch_batches=number % 3)
        batches, state = _leg(leg, loaded, state, hosts, count)
        joined += batches
    _same(joined, whole)
    ids = _sample_ids(joined)
    assert ids == _sample_ids(whole)
    assert len(ids) > len(set(ids)) > 20  # beyond the first epoch, and not one sample repeated


def test_hosts_must_divide_the_batch(config: DataConfig, text: PlannedExamples):
    online = DataConfig(source="synthetic", tokenizer="bytes", max_bytes=40_000, batch_size=4)
    for stream in (config, online):
        with pytest.raises(DataError, match="batch_size=4 cannot be divided among 3 hosts"):
            training_batches(stream, text if stream is config else None, process_count=3)


def _chat_tokens(batch: Batch) -> int:
    """Tokens of the segments in which something is masked: only chats have a prompt."""
    total = 0
    for ids, weights in zip(batch["segment_ids"], batch["loss_weights"], strict=True):
        for segment in range(1, ids.max() + 1):
            total += int((ids == segment).sum()) * bool((weights[ids == segment] == 0).any())
    return total


def test_shares_of_tokens_follow_the_weights_of_each_stage(
    config: DataConfig, text: PlannedExamples
):
    config = dataclasses.replace(config, batch_size=16)
    batches = _take(config, text, 20)
    for span, share in ((slice(0, 6), 1 / 4), (slice(6, 20), 1 / 2)):
        tokens = sum(int((b["segment_ids"] > 0).sum()) for b in batches[span])
        assert sum(map(_chat_tokens, batches[span])) / tokens == pytest.approx(share, abs=0.01)


def test_batches_are_sound_and_prompts_are_not_learnt(config: DataConfig, text: PlannedExamples):
    for batch in _take(config, text, 6):
        check_batch(batch, text.tokenizer.vocab_size, config.sequence_length)
        segments = batch["segment_ids"]
        starts = np.diff(segments, axis=1, prepend=0) > 0
        assert (batch["tokens"][starts] == text.tokenizer.bos_id).any()
        np.testing.assert_array_equal(batch["positions"][starts], 0)
        assert (batch["loss_weights"][segments == 0] == 0).all()
        # Within a segment the target is the next token.
        inner = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] > 0)
        np.testing.assert_array_equal(
            batch["targets"][:, :-1][inner], batch["tokens"][:, 1:][inner]
        )
    assert fill_rate(_take(config, text, 10)) > 0.8


def test_an_epoch_holds_every_example_once(config: DataConfig, text: PlannedExamples):
    """And the next epoch again, in another order: an exhausted source starts anew."""
    chats = dataclasses.replace(config, mixture=config.mixture[:1], batch_size=1)
    loaded = load_text(chats)
    lengths = loaded.sources[0].train.lengths
    order: list[bytes] = []
    tokens = 0
    batches = training_batches(chats, loaded)
    while tokens < 2 * lengths.sum():
        batch = next(batches)
        tokens += int((batch["segment_ids"] > 0).sum())
        order += [
            batch["tokens"][0][batch["segment_ids"][0] == segment].tobytes()
            for segment in range(1, batch["segment_ids"].max() + 1)
        ]
    batches.close()
    half = len(order) // 2
    assert half == len(lengths)
    assert sorted(order[:half]) == sorted(order[half:])
    assert order[:half] != order[half:]


def test_validation_is_per_source_and_always_the_same(config: DataConfig, text: PlannedExamples):
    held_out = validation_batches(config, text)
    assert list(held_out) == ["chats.jsonl", "synthetic"]
    other_seed = dataclasses.replace(config, shuffle_seed=5)
    for name, batches in validation_batches(other_seed, text).items():
        _same(batches, held_out[name])
        assert 0 < len(batches) <= 2


def test_a_position_of_another_mixture_is_refused(config: DataConfig, text: PlannedExamples):
    batches = training_batches(config, text)
    state = batches.get_state()
    state["stream"]["mixture"] = [[0], [[1.0, 1.0]]]
    with pytest.raises(DataError, match="mixture"):
        batches.set_state(state)
    batches.close()


def test_a_longer_context_keeps_more_reasoning(config: DataConfig, tmp_path: Path):
    source = tmp_path / "long.jsonl"
    row = {
        "messages": [
            {"role": "user", "content": "{}?"},
            {"role": "assistant", "reasoning": "r" * 400, "content": "a"},
        ]
    }
    source.write_text("".join(json.dumps(row).replace("{}", str(n)) + "\n" for n in range(20)))
    sizes = {}
    for length in (16, 128, 256):
        changed = dataclasses.replace(config, mixture=(f"{source}=1",), sequence_length=length)
        if length == 16:
            with pytest.raises(DataError, match="no example fits sequence_length=16"):
                load_text(changed)
            continue
        loaded = load_text(changed)
        sizes[length] = loaded.sources[0].train.lengths.max()
        assert "cut" in " ".join(loaded.notes)
    assert sizes == {128: 128, 256: 256}


def test_megatron_tokens_train_as_they_are(config: DataConfig, tmp_path: Path):
    documents = [[[11 + n, 12, 13, 1]] for n in range(40)]
    source = write_megatron(tmp_path, documents, 8, "<u2")
    loaded = load_text(dataclasses.replace(config, mixture=(f"{source}=1",)))
    ids, learnt = loaded.sources[0].train.example(0)
    assert ids[0] == loaded.tokenizer.bos_id
    assert ids[-1] == 1
    assert learnt.all()
    write_megatron(tmp_path, [[[999]], [[998]]], 8, "<u2")
    with pytest.raises(DataError, match=r"token id 99\d is outside tokenizer 'bytes'"):
        load_text(dataclasses.replace(config, mixture=(f"{source}=1",)))


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        (("synthetic=0",), "'synthetic' has weight 0"),
        (("synthetic",), "is not SOURCE=WEIGHT"),
        (("synthetic=x",), "is not SOURCE=WEIGHT"),
        (("synthetic=-1",), "is not SOURCE=WEIGHT"),
        (("synthetic=1/5:1/3:1",), "rising batches"),
        (("synthetic=1", "synthetic=2"), "names a source twice"),
        (("synthetic=1/5:0",), "every weight is 0 from batch 5"),
    ],
)
def test_bad_mixtures_are_named(config: DataConfig, mixture: tuple[str, ...], message: str):
    with pytest.raises(DataError, match=message):
        load_text(dataclasses.replace(config, mixture=mixture))


def test_mixtures_need_planned_packing():
    with pytest.raises(ConfigError, match="needs packing=planned"):
        DataConfig(mixture=("synthetic=1",))
