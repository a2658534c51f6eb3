"""Bad batches and misfits between data and model, found before they reach an array index.

JAX clamps indices that are out of bounds, so a wrong token id would otherwise train in silence.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.packing import BATCH_DTYPES
from zaya_jax.data.tokenizer import Tokenizer


def check_batch(
    batch: Mapping[str, np.ndarray], vocab_size: int, max_position_embeddings: int
) -> None:
    """Check one batch; a few passes over it.

    Args:
      batch: As `training_batches` yields it.
      vocab_size: Rows of the model's embedding.
      max_position_embeddings: Longest sequence the model accepts.

    Raises:
      DataError: naming the array, the offending value, where it is, and the rule.
    """
    _check_arrays(batch)
    sequence_length = batch["tokens"].shape[1]
    if sequence_length > max_position_embeddings:
        raise DataError(
            f"batch has sequences of {sequence_length} tokens, the model takes at most "
            f"max_position_embeddings={max_position_embeddings}; lower sequence_length"
        )
    for name in ("tokens", "targets"):
        rule = f"is not a token id of the model: vocab_size={vocab_size}"
        _check_range(name, batch[name], vocab_size, rule)
    rule = f"must lie in [0, {sequence_length})"
    _check_range("positions", batch["positions"], sequence_length, rule)
    rule = "must lie between 0 (padding) and the sequence length"
    _check_range("segment_ids", batch["segment_ids"], sequence_length + 1, rule)
    weights = batch["loss_weights"]
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"loss_weights[{row}, {column}] = {weights[row, column]}: must be finite, at least 0"
        )


def check_data_fits_model(
    config: DataConfig, tokenizer: Tokenizer, vocab_size: int, max_position_embeddings: int
) -> None:
    """Check, before anything is compiled, that the model can take what the data will yield.

    Raises:
      DataError: if the tokenizer makes ids the embedding lacks, or windows are too long.
    """
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"tokenizer {tokenizer.name!r} makes token ids up to {tokenizer.vocab_size - 1}, "
            f"the model has vocab_size={vocab_size}; set it to at least {tokenizer.vocab_size}"
        )
    if config.sequence_length > max_position_embeddings:
        raise DataError(
            f"sequence_length={config.sequence_length} is longer than the model's "
            f"max_position_embeddings={max_position_embeddings}; lower the one or raise the other"
        )


def _check_arrays(batch: Mapping[str, np.ndarray]) -> None:
    if set(batch) != set(BATCH_DTYPES):
        raise DataError(f"batch holds {sorted(batch)}, expected {sorted(BATCH_DTYPES)}")
    shape = batch["tokens"].shape
    for name, dtype in BATCH_DTYPES.items():
        array = batch[name]
        if array.dtype != dtype:
            raise DataError(f"{name} is {array.dtype}, expected {np.dtype(dtype)}")
        if array.ndim != 2 or array.shape != shape:
            raise DataError(
                f"{name} has shape {array.shape}, tokens {shape}; expected [batch, seq] for all"
            )


def _check_range(name: str, array: np.ndarray, end: int, rule: str) -> None:
    if array.size and (array.min() < 0 or array.max() >= end):
        row, column = np.argwhere((array < 0) | (array >= end))[0]
        raise DataError(f"{name}[{row}, {column}] = {array[row, column]} {rule}")
