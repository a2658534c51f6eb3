"""The data stream of a run: batches for training and validation, and a position to save."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Mapping
from typing import Any

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

from zaya_jax.data.config import DataConfig, DataError, Packing
from zaya_jax.data.packing import pack, to_batches
from zaya_jax.data.planned import (
    PlannedDataset,
    PlannedExamples,
    load_planned,
    planned_identity,
    rows_of_host,
    validation_windows,
)
from zaya_jax.data.sources import documents_fingerprint, read_source
from zaya_jax.data.tokenizer import Tokenizer, tokenizer_of
from zaya_jax.data.windows import PieceSource, TokenizedDocuments, tokenize

Batch = dict[str, np.ndarray]

_STATE_FORMAT = 1
_VALIDATION_SEED = 0  # validation text never follows the training seed


@dataclasses.dataclass(frozen=True)
class TokenizedText:
    """Both parts of a source, tokenised. Made once and shared by training and validation."""

    source: str
    tokenizer: Tokenizer
    train: TokenizedDocuments
    validation: TokenizedDocuments
    train_fingerprint: str  # of the training documents, before tokenising
    skipped_files: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know about the reading, in lines."""
        return ()


LoadedText = TokenizedText | PlannedExamples


def load_text(config: DataConfig) -> LoadedText:
    """Read and tokenise what `config` names; the slow part of starting a stream.

    Raises:
      DataError: for an unknown or empty source or an unusable tokenizer.
    """
    tokenizer = tokenizer_of(config)
    if config.packing is Packing.PLANNED:
        return load_planned(config, tokenizer)
    text = read_source(config)
    return TokenizedText(
        source=text.name,
        tokenizer=tokenizer,
        train=tokenize(text.train, tokenizer),
        validation=tokenize(text.validation, tokenizer),
        train_fingerprint=documents_fingerprint(text.train),
        skipped_files=text.skipped,
    )


def training_batches(
    config: DataConfig,
    text: LoadedText | None = None,
    *,
    process_index: int = 0,
    process_count: int = 1,
) -> BatchIterator:
    """Batches without end; pieces and windows come in a new random order in every epoch.

    A batch is a dict of C-contiguous numpy arrays `[batch_size, sequence_length]`: int32 `tokens`,
    `targets`, `positions`, `segment_ids` and float32 `loss_weights` (0 on padding).

    Args:
      config: What to read and how to cut it.
      text: `load_text(config)` if the caller has it; None reads it now.
      process_index: which part of every batch's rows to give.
      process_count: into how many parts the rows are divided.
    """
    text = load_text(config) if text is None else text
    if isinstance(text, PlannedExamples):
        planned = PlannedDataset(
            config,
            text.mixture,
            text.sources,
            text.tokenizer.pad_id,
            process_index,
            process_count,
        )
        return _iterate(config, planned, planned_identity(config, text))
    rows = rows_of_host(config.batch_size, process_index, process_count)
    pieces = grain.MapDataset.source(PieceSource(text.train, config.sequence_length))
    pieces = pieces.seed(config.shuffle_seed).shuffle().repeat()
    windows = pack(
        _sequential(pieces),
        sequence_length=config.sequence_length,
        bins=config.packing_bins,
        pad_id=text.tokenizer.pad_id,
        seed=config.shuffle_seed,
        shuffle_windows=True,
    )
    batches = to_batches(
        windows, config.batch_size, drop_remainder=True, pad_id=text.tokenizer.pad_id
    )
    if process_count > 1:  # every host packs the whole stream, so that its order is the same
        batches = batches.map(lambda batch: {name: x[rows] for name, x in batch.items()})
    return _iterate(config, batches, _identity(config, text))


def _iterate(
    config: DataConfig, batches: grain.IterDataset, identity: dict[str, Any]
) -> BatchIterator:
    if config.prefetch_batches:
        batches = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=config.prefetch_batches)
    return BatchIterator(iter(batches), identity)


def validation_batches(
    config: DataConfig, text: LoadedText | None = None
) -> dict[str, list[Batch]]:
    """At most `config.validation_batches` batches of each source, by its name; always the same.

    The last batch is filled with empty windows where the text runs out.

    Args:
      config: What to read and how to cut it.
      text: `load_text(config)` if the caller has it; None reads it now.
    """
    text = load_text(config) if text is None else text
    if isinstance(text, PlannedExamples):
        pad_id = text.tokenizer.pad_id
        return {s.name: validation_windows(config, s.validation, pad_id) for s in text.sources}
    pieces = grain.MapDataset.source(PieceSource(text.validation, config.sequence_length))
    # Shuffled so that the first few batches are not one long file.
    pieces = pieces.seed(_VALIDATION_SEED).shuffle()
    windows = pack(
        _sequential(pieces),
        sequence_length=config.sequence_length,
        bins=config.packing_bins,
        pad_id=text.tokenizer.pad_id,
        seed=_VALIDATION_SEED,
        shuffle_windows=False,
    )
    batches = to_batches(
        windows, config.batch_size, drop_remainder=False, pad_id=text.tokenizer.pad_id
    )
    return {text.source: list(itertools.islice(iter(batches), config.validation_batches))}


def unigram_entropy(batches: list[Batch]) -> float:
    """Entropy in nats per token of the targets that count, each taken by itself.

    What a model could reach on these batches if it knew how often each token occurs and ignored
    all context; a loss below it shows that context is used.

    Raises:
      DataError: if no target has a positive weight.
    """
    if not any(np.any(batch["loss_weights"] > 0) for batch in batches):
        raise DataError("unigram entropy of no tokens: every loss weight is 0")
    counted = np.concatenate([batch["targets"][batch["loss_weights"] > 0] for batch in batches])
    counts = np.unique(counted, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


class BatchIterator:
    """Training batches and their position.

    `get_state` after n batches is a dict that survives JSON; `set_state` on a new iterator of the
    same stream continues with batch n + 1, whether or not either of them prefetches.
    """

    def __init__(self, batches: grain.DatasetIterator, identity: dict[str, Any]) -> None:
        self._identity = identity
        self._open = [batches]  # emptied by closing
        # Also runs at exit, before the interpreter takes apart the modules grain closes with.
        self._finalizer = weakref.finalize(self, _close, self._open)

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        return next(self._grain_iterator())

    def get_state(self) -> dict[str, Any]:
        """The position, and what stream it is a position in."""
        return {
            "format": _STATE_FORMAT,
            "stream": dict(self._identity),
            "position": self._grain_iterator().get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position.

        Raises:
          DataError: if the position belongs to another stream; the message lists what differs.
        """
        if state.get("format") != _STATE_FORMAT:
            raise DataError(
                f"data position has format {state.get('format')!r}, this version reads "
                f"{_STATE_FORMAT}; continue with the version that wrote it or start a new workdir"
            )
        differences = stream_differences(state["stream"], self._identity)
        if differences:
            raise DataError(
                "the saved data position belongs to another stream of batches:\n  "
                + "\n  ".join(differences)
                + "\nContinue with the data the run began with, or start a new workdir"
            )
        self._grain_iterator().set_state(state["position"])

    def close(self) -> None:
        """Stop prefetching; no batch can be read afterwards."""
        self._finalizer()

    def _grain_iterator(self) -> grain.DatasetIterator:
        if not self._open:
            raise DataError("the batch iterator is closed; make a new one and set its state")
        return self._open[0]


def _close(open_iterators: list[grain.DatasetIterator]) -> None:
    """Join the prefetching thread and let go of the iterator."""
    while open_iterators:
        open_iterators.pop().close()


def stream_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """What differs between two streams, as "thing: saved -> current" lines."""
    return [
        f"{name}: {saved.get(name)!r} -> {current.get(name)!r}"
        for name in sorted({*saved, *current})
        if saved.get(name) != current.get(name)
    ]


def _identity(config: DataConfig, text: TokenizedText) -> dict[str, Any]:
    """All that decides which batch comes n-th. Names and paths do not: contents do."""
    return {
        "training text (sha256)": text.train_fingerprint,
        "training documents": len(text.train.starts) - 1,
        "tokenizer (sha256)": text.tokenizer.fingerprint,
        "bos, eos, pad ids": [
            text.tokenizer.bos_id,
            text.tokenizer.eos_id,
            text.tokenizer.pad_id,
        ],
        "sequence_length": config.sequence_length,
        "batch_size": config.batch_size,
        "packing_bins": config.packing_bins,
        "shuffle_seed": config.shuffle_seed,
    }


def _sequential(pieces: grain.MapDataset) -> grain.IterDataset:
    """Read pieces one by one: they lie in memory, so grain's reading threads would only cost."""
    return pieces.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
