"""The stream: its batches, its exact continuation, and its refusal to become another one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from zaya_jax.data import (
    DataConfig,
    DataError,
    check_batch,
    fill_rate,
    load_text,
    load_tokenizer,
    training_batches,
    unigram_entropy,
    validation_batches,
)
from zaya_jax.data.windows import PieceSource

CONFIG = DataConfig(
    source="synthetic",
    max_bytes=20_000,
    tokenizer="bytes",
    sequence_length=64,
    batch_size=4,
    packing_bins=8,
    prefetch_batches=0,
)
TEXT = load_text(CONFIG)
BATCHES_PER_EPOCH = TEXT.train.tokens.size / (64 * 4)


def take(iterator, count):
    return list(itertools.islice(iterator, count))


def assert_same(left, right):
    assert len(left) == len(right)
    for first, second in zip(left, right, strict=True):
        assert first.keys() == second.keys()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


def test_batch_is_what_training_expects():
    for batch in take(training_batches(CONFIG, TEXT), 5):
        check_batch(batch, TEXT.tokenizer.vocab_size, max_position_embeddings=64)
        assert all(array.flags.c_contiguous for array in batch.values())
        assert batch["tokens"].shape == (4, 64)
        inside = batch["segment_ids"][:, 1:] == batch["segment_ids"][:, :-1]
        inside &= batch["segment_ids"][:, 1:] > 0
        # Within a segment a target is the next token.
        np.testing.assert_array_equal(
            batch["targets"][:, :-1][inside], batch["tokens"][:, 1:][inside]
        )
        np.testing.assert_array_equal(batch["loss_weights"], batch["segment_ids"] > 0)


def test_segments_begin_documents_with_bos_and_end_them_with_eos():
    batches = take(training_batches(CONFIG, TEXT), int(BATCHES_PER_EPOCH))
    tokens = np.concatenate([batch["tokens"].ravel() for batch in batches])
    targets = np.concatenate([batch["targets"].ravel() for batch in batches])
    positions = np.concatenate([batch["positions"].ravel() for batch in batches])
    assert np.all(positions[tokens == TEXT.tokenizer.bos_id] == 0)
    assert not np.any(targets == TEXT.tokenizer.bos_id)
    assert not np.any(tokens == TEXT.tokenizer.eos_id)
    assert np.any(targets == TEXT.tokenizer.eos_id)


@pytest.mark.parametrize("prefetch_before", [0, 3])
@pytest.mark.parametrize("prefetch_after", [0, 3])
@pytest.mark.parametrize("consumed", [0, 1, 7, int(2.5 * BATCHES_PER_EPOCH)])
def test_saved_position_continues_exactly(prefetch_before, prefetch_after, consumed):
    before = training_batches(dataclasses.replace(CONFIG, prefetch_batches=prefetch_before), TEXT)
    take(before, consumed)
    state = json.loads(json.dumps(before.get_state()))
    expected = take(before, 12)
    after = training_batches(dataclasses.replace(CONFIG, prefetch_batches=prefetch_after))
    take(after, 2)  # setting a position also works on an iterator already in use
    after.set_state(state)
    assert after.get_state() == state
    assert_same(take(after, 12), expected)


def test_epochs_hold_the_same_pieces_in_another_order():
    source = PieceSource(TEXT.train, CONFIG.sequence_length)
    # With a single window open, pieces appear in the order in which they were drawn.
    iterator = training_batches(dataclasses.replace(CONFIG, packing_bins=1, batch_size=1), TEXT)
    drawn = []
    while len(drawn) < 2 * len(source):
        batch = next(iterator)
        for segment in range(1, batch["segment_ids"].max() + 1):
            drawn.append(batch["tokens"][batch["segment_ids"] == segment].tolist())
    first, second = drawn[: len(source)], drawn[len(source) : 2 * len(source)]
    every_piece = sorted(source[index]["tokens"].tolist() for index in range(len(source)))
    assert sorted(first) == every_piece
    assert sorted(second) == every_piece
    assert first != second


def test_seed_decides_the_order():
    first, again, other = (
        take(training_batches(dataclasses.replace(CONFIG, shuffle_seed=seed), TEXT), 2)
        for seed in (0, 0, 1)
    )
    assert_same(first, again)
    assert not np.array_equal(first[0]["tokens"], other[0]["tokens"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sequence_length": 32}, "sequence_length: 64 -> 32"),
        ({"batch_size": 2}, "batch_size: 4 -> 2"),
        ({"packing_bins": 9}, "packing_bins: 8 -> 9"),
        ({"shuffle_seed": 5}, "shuffle_seed: 0 -> 5"),
        ({"tokenizer": "zaya_demo_8k"}, "tokenizer .sha256."),
        ({"max_bytes": 10_000}, "training text .sha256."),
    ],
)
def test_position_of_another_stream_is_refused(change, named):
    state = training_batches(CONFIG, TEXT).get_state()
    other = training_batches(dataclasses.replace(CONFIG, **change))
    with pytest.raises(DataError, match=f"(?s)another stream.*{named}.*start a new workdir"):
        other.set_state(state)


def test_changed_file_is_refused_and_moved_folder_is_not(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for index in range(30):
        (folder / f"{index}.txt").write_text(f"file {index}\n" * 5)
    config = dataclasses.replace(CONFIG, source=str(folder))
    state = training_batches(config).get_state()
    moved = folder.rename(tmp_path / "moved")
    config = dataclasses.replace(CONFIG, source=str(moved))
    training_batches(config).set_state(state)
    for index in range(30):
        (moved / f"{index}.txt").write_text(f"other {index}\n" * 5)
    with pytest.raises(DataError, match="training text"):
        training_batches(config).set_state(state)


def test_unknown_state_format_is_refused():
    iterator = training_batches(CONFIG, TEXT)
    with pytest.raises(DataError, match="format 99"):
        iterator.set_state({**iterator.get_state(), "format": 99})


def test_closed_iterator_says_so():
    iterator = training_batches(dataclasses.replace(CONFIG, prefetch_batches=2), TEXT)
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(DataError, match="closed"):
        next(iterator)


def test_validation_is_bounded_repeatable_and_held_out():
    config = dataclasses.replace(CONFIG, validation_batches=2)
    first, second = validation_batches(config, TEXT), validation_batches(config)
    assert list(first) == ["synthetic"]
    assert len(first["synthetic"]) == 2
    assert_same(first["synthetic"], second["synthetic"])
    seeded = validation_batches(dataclasses.replace(config, shuffle_seed=9), TEXT)
    assert_same(first["synthetic"], seeded["synthetic"])


def test_validation_ends_with_the_text_and_misses_nothing():
    config = dataclasses.replace(CONFIG, validation_batches=1_000)
    (batches,) = validation_batches(config, TEXT).values()
    documents = len(TEXT.validation.starts) - 1
    counted = sum(batch["loss_weights"].sum() for batch in batches)
    assert counted == TEXT.validation.tokens.size - documents
    assert {batch["tokens"].shape for batch in batches} == {(4, 64)}


def test_unigram_entropy_of_known_counts():
    weights = np.asarray([[1, 1, 1, 1, 0, 0]], np.float32)
    batch = {"targets": np.asarray([[5, 5, 7, 8, 9, 9]], np.int32), "loss_weights": weights}
    assert unigram_entropy([batch]) == pytest.approx(1.5 * math.log(2))
    with pytest.raises(DataError, match="every loss weight is 0"):
        unigram_entropy([{**batch, "loss_weights": 0 * weights}])


def test_windows_of_real_text_are_nearly_full():
    config = DataConfig(max_bytes=1_000_000, prefetch_batches=0)
    text = load_text(config)
    batches = take(training_batches(config, text), 40)
    assert fill_rate(batches) > 0.97
    assert text.tokenizer.fingerprint == load_tokenizer("zaya_demo_8k").fingerprint


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)"])
def test_process_ends_cleanly_while_prefetching(ending):
    # Flags of absl are never parsed here, and the iterator is a global nobody closes.
    program = f"""
from zaya_jax.data import DataConfig, training_batches
batches = training_batches(
    DataConfig(source="synthetic", tokenizer="bytes", sequence_length=32, prefetch_batches=2)
)
next(batches)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    assert done.returncode == (3 if ending else 0)
