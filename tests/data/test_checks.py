"""Bad batches and misfits are named before JAX would clamp them in silence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from zaya_jax.data import DataConfig, DataError, check_batch, check_data_fits_model, load_tokenizer


def make_batch(**changes):
    batch = {
        "tokens": np.ones((2, 4), np.int32),
        "targets": np.ones((2, 4), np.int32),
        "positions": np.tile(np.arange(4, dtype=np.int32), (2, 1)),
        "segment_ids": np.ones((2, 4), np.int32),
        "loss_weights": np.ones((2, 4), np.float32),
    }
    batch.update(changes)
    return batch


def with_value(name, value):
    array = make_batch()[name].copy()
    array[1, 2] = value
    return {name: array}


def test_good_batch_passes():
    check_batch(make_batch(), vocab_size=2, max_position_embeddings=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (with_value("tokens", 10), r"tokens\[1, 2\] = 10 .*vocab_size=10"),
        (with_value("tokens", -1), r"tokens\[1, 2\] = -1 .*vocab_size=10"),
        (with_value("targets", 11), r"targets\[1, 2\] = 11 .*vocab_size=10"),
        (with_value("positions", 4), r"positions\[1, 2\] = 4 must lie in \[0, 4\)"),
        (with_value("segment_ids", -1), r"segment_ids\[1, 2\] = -1"),
        (with_value("loss_weights", np.nan), r"loss_weights\[1, 2\] = nan"),
        (with_value("loss_weights", -0.5), r"loss_weights\[1, 2\] = -0.5"),
        ({"targets": np.ones((2, 4), np.int64)}, "targets is int64, expected int32"),
        ({"segment_ids": np.ones((2, 3), np.int32)}, r"segment_ids has shape \(2, 3\)"),
        ({"tokens": np.ones(4, np.int32)}, r"tokens has shape \(4,\)"),
        ({"extra": np.ones((2, 4), np.int32)}, "batch holds .*extra"),
    ],
)
def test_bad_batch_is_named(changes, message):
    with pytest.raises(DataError, match=message):
        check_batch(make_batch(**changes), vocab_size=10, max_position_embeddings=4)


def test_too_long_sequence_is_named():
    with pytest.raises(DataError, match=r"sequences of 4 tokens.*max_position_embeddings=3"):
        check_batch(make_batch(), vocab_size=10, max_position_embeddings=3)


def test_misfits_of_data_and_model_are_named():
    config = DataConfig(sequence_length=64)
    tokenizer = load_tokenizer("bytes")
    check_data_fits_model(config, tokenizer, tokenizer.vocab_size, 64)
    with pytest.raises(DataError, match=r"ids up to 266.*vocab_size=266; set it to at least 267"):
        check_data_fits_model(config, tokenizer, 266, 64)
    config = dataclasses.replace(config, sequence_length=65)
    with pytest.raises(DataError, match=r"sequence_length=65 .*max_position_embeddings=64"):
        check_data_fits_model(config, tokenizer, 300, 64)
