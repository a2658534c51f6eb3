"""Packing keeps pieces whole, apart and complete."""

from __future__ import annotations

import grain
import numpy as np

from zaya_jax.data.packing import fill_rate, pack, to_batches

PAD = 99


def make_windows(lengths, sequence_length=8, bins=4, shuffle=False):
    pieces = [
        {
            "tokens": np.full(length, index, np.int32),
            "targets": np.full(length, index, np.int32) + 1_000,
            "loss_weights": np.arange(length, dtype=np.float32),
        }
        for index, length in enumerate(lengths)
    ]
    dataset = grain.MapDataset.source(pieces).to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    )
    return pack(
        dataset,
        sequence_length=sequence_length,
        bins=bins,
        pad_id=PAD,
        seed=0,
        shuffle_windows=shuffle,
    )


def test_every_piece_lies_whole_in_one_segment():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, size=60).tolist()
    found = {}
    for window in make_windows(lengths, shuffle=True):
        ids = window["segment_ids"]
        for segment in range(1, ids.max() + 1):
            places = np.flatnonzero(ids == segment)
            np.testing.assert_array_equal(places, np.arange(places[0], places[-1] + 1))
            (index,) = set(window["tokens"][places].tolist())
            assert index not in found
            found[index] = len(places)
            np.testing.assert_array_equal(window["positions"][places], np.arange(len(places)))
            np.testing.assert_array_equal(window["targets"][places], index + 1_000)
            np.testing.assert_array_equal(window["loss_weights"][places], np.arange(len(places)))
        padding = ids == 0
        assert np.all(window["tokens"][padding] == PAD)
        assert np.all(window["targets"][padding] == PAD)
        assert np.all(window["loss_weights"][padding] == 0)
    assert found == dict(enumerate(lengths))


def test_a_piece_goes_to_the_fullest_window_that_fits():
    windows = list(make_windows([5, 6, 2], bins=2))
    assert [set(window["tokens"].tolist()) for window in windows] == [{0, PAD}, {1, 2}]


def test_last_batch_is_filled_with_empty_windows():
    windows = make_windows([8, 8, 8])
    batches = list(to_batches(windows, 2, drop_remainder=False, pad_id=PAD))
    assert [batch["tokens"].shape for batch in batches] == [(2, 8), (2, 8)]
    assert np.all(batches[1]["tokens"][1] == PAD)
    assert np.all(batches[1]["segment_ids"][1] == 0)
    assert np.all(batches[1]["loss_weights"][1] == 0)
    assert fill_rate(batches) == 0.75


def test_windows_packed_together_come_in_an_order_the_seed_decides():
    in_order = [window["tokens"][0] for window in make_windows([8] * 20, bins=20)]
    shuffled = [window["tokens"][0] for window in make_windows([8] * 20, bins=20, shuffle=True)]
    assert in_order == list(range(20))
    assert shuffled != in_order
    assert sorted(shuffled) == in_order
