"""Pieces to windows to batches: best-fit packing with segment ids and positions."""

from __future__ import annotations

from collections.abc import Mapping

import grain
import numpy as np
from grain.experimental import BestFitPackIterDataset

# Every batch: int32 [batch, seq], but loss_weights float32 [batch, seq].
BATCH_DTYPES: dict[str, type] = {
    "tokens": np.int32,
    "targets": np.int32,
    "positions": np.int32,
    "segment_ids": np.int32,
    "loss_weights": np.float32,
}


def pack(
    pieces: grain.IterDataset,
    *,
    sequence_length: int,
    bins: int,
    pad_id: int,
    seed: int,
    shuffle_windows: bool,
) -> grain.IterDataset:
    """Put whole pieces into windows, each into the fullest open window that still fits it.

    When a piece fits none of the `bins` open windows, all of them are emitted, in random order if
    `shuffle_windows`, and packing starts again: online best fit, arXiv 2404.10830 without its
    sorting. Segment ids count from 1 in each window, 0 is padding; positions restart at 0 in each
    segment. Padding has token and target `pad_id` and weight 0.

    Args:
      pieces: Dicts of `tokens`, `targets`, `loss_weights`, at most `sequence_length` long.
      sequence_length: Tokens of a window.
      bins: Windows open at the same time.
      pad_id: Token of the unused rest.
      seed: Of the order of windows.
      shuffle_windows: Whether windows packed together are emitted in random order.
    """
    features = ("tokens", "targets", "loss_weights")
    packed = BestFitPackIterDataset(
        pieces,
        length_struct=dict.fromkeys(features, sequence_length),
        num_packing_bins=bins,
        seed=seed,
        shuffle_bins=shuffle_windows,
        # Segment ids and positions are made for the one feature not listed here.
        meta_features=("targets", "loss_weights"),
        padding_struct={"tokens": pad_id, "targets": pad_id, "loss_weights": 0.0},
    )
    return packed.map(_rename)


def to_batches(
    windows: grain.IterDataset, batch_size: int, *, drop_remainder: bool, pad_id: int
) -> grain.IterDataset:
    """Stack windows. A last batch that is not full is dropped or filled with empty windows."""
    batches = windows.batch(batch_size, drop_remainder=drop_remainder)
    return batches.map(lambda batch: _finish_batch(batch, batch_size, pad_id))


def fill_rate(batches: list[dict[str, np.ndarray]]) -> float:
    """Share of positions that hold a token."""
    filled = sum(int(np.count_nonzero(batch["segment_ids"])) for batch in batches)
    return filled / sum(batch["segment_ids"].size for batch in batches)


def _rename(window: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        "tokens": window["tokens"],
        "targets": window["targets"],
        "positions": window["tokens_positions"],
        "segment_ids": window["tokens_segment_ids"],
        "loss_weights": window["loss_weights"],
    }


def _finish_batch(
    batch: Mapping[str, np.ndarray], batch_size: int, pad_id: int
) -> dict[str, np.ndarray]:
    finished: dict[str, np.ndarray] = {}
    for name, dtype in BATCH_DTYPES.items():
        rows = batch[name]
        if len(rows) < batch_size:
            padding = pad_id if name in ("tokens", "targets") else 0
            missing = ((0, batch_size - len(rows)), (0, 0))
            rows = np.pad(rows, missing, constant_values=padding)
        finished[name] = np.ascontiguousarray(rows, dtype)
    return finished
