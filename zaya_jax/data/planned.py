"""Batches from packing plans: every window of every epoch has a number, so any can be made alone.

The order of windows is a function of the data, the mixture and the seed. The position is the number
of batches given out and, for each source, of windows and tokens: nothing about threads or hosts.
So a run may go on with another number of either, and the windows of its global batches are the same
in the same order. Each host makes only its own rows of every batch.
"""

from __future__ import annotations

import collections
import concurrent.futures
import copy
import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import grain
import numpy as np

from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.examples import AnyExamples, SourceExamples, load_examples
from zaya_jax.data.mixture import Mixture, mixture_of, next_source
from zaya_jax.data.packing import BATCH_DTYPES
from zaya_jax.data.packing_plan import PackingPlan, plan_packing
from zaya_jax.data.tokenizer import Tokenizer

Batch = dict[str, np.ndarray]
Window = tuple[AnyExamples, np.ndarray]  # where its examples lie, and which they are


@dataclasses.dataclass(frozen=True)
class PlannedExamples:
    """All sources of a planned stream, tokenised. Made once, shared by training and validation."""

    tokenizer: Tokenizer
    mixture: Mixture
    sources: tuple[SourceExamples, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know about the reading, in lines."""
        return tuple(note for source in self.sources for note in source.notes)


def load_planned(config: DataConfig, tokenizer: Tokenizer) -> PlannedExamples:
    """Read, tokenise and trim every source of the mixture.

    Raises:
      DataError: for an unusable source or mixture.
    """
    mixture = mixture_of(config)
    sources = tuple(load_examples(source, config, tokenizer) for source in mixture.sources)
    return PlannedExamples(tokenizer, mixture, _with_unique_names(sources, mixture))


class WindowId(NamedTuple):
    """One window of the whole run; the same on every host."""

    source: int
    epoch: int
    number: int  # within the epoch


@dataclasses.dataclass
class Position:
    """Where a stream is: batches given out, and windows and tokens of each source."""

    batch: int
    windows: list[int]
    tokens: list[int]  # since the mixture's stage began


class Planner:
    """Decides which windows make the next global batch. Counts only: it reads no tokens."""

    def __init__(self, config: DataConfig, mixture: Mixture, parts: Sequence[AnyExamples]) -> None:
        self._config, self._mixture = config, mixture
        self._lengths = [part.lengths for part in parts]
        self._plans: dict[int, tuple[int, PackingPlan]] = {}  # the newest epoch of each source
        # Every epoch of a source packs into equally many windows.
        self._sizes = [len(self.plan(source, 0)) for source in range(len(parts))]

    def plan(self, source: int, epoch: int) -> PackingPlan:
        """The packing of one epoch of one source."""
        known = self._plans.get(source)
        if known is None or known[0] != epoch:
            seed = int(
                np.random.SeedSequence([self._config.shuffle_seed, source, epoch]).generate_state(
                    1
                )[0]
            )
            plan = plan_packing(self._lengths[source], self._config.sequence_length, seed)
            self._plans[source] = known = (epoch, plan)
        return known[1]

    def next_batch(self, position: Position) -> list[WindowId]:
        """The windows of the batch at `position`, which moves one on."""
        stage = self._mixture.stage(position.batch)
        if position.batch > 0 and position.batch in self._mixture.starts:
            position.tokens = [0] * len(position.tokens)
        chosen: list[WindowId] = []
        for _ in range(self._config.batch_size):
            source = next_source(position.tokens, self._mixture.weights[stage])
            epoch, number = divmod(position.windows[source], self._sizes[source])
            chosen.append(WindowId(source, epoch, number))
            position.windows[source] += 1
            position.tokens[source] += int(self.plan(source, epoch).fill[number])
        position.batch += 1
        return chosen


class PlannedDataset(grain.IterDataset):
    """The stream of one host as grain reads it; grain's prefetching goes on top."""

    def __init__(
        self,
        config: DataConfig,
        mixture: Mixture,
        sources: Sequence[SourceExamples],
        pad_id: int,
        process_index: int,
        process_count: int,
    ) -> None:
        """Host `process_index` of `process_count` gets that part of every batch's rows.

        Raises:
          DataError: when the hosts do not divide the batch.
        """
        super().__init__()
        self.config, self.mixture, self.pad_id = config, mixture, pad_id
        self.parts = [source.train for source in sources]
        self.rows = rows_of_host(config.batch_size, process_index, process_count)

    def __iter__(self) -> PlannedIterator:
        return PlannedIterator(self)


class PlannedIterator(grain.DatasetIterator):
    """Batches without end, and their position.

    Which windows come next is decided in order by whoever asks; workers only copy tokens, each a
    batch of its own, and batches are given out in order. So their number shows nowhere.
    """

    def __init__(self, dataset: PlannedDataset) -> None:
        super().__init__()
        self._dataset = dataset
        self._planner = Planner(dataset.config, dataset.mixture, dataset.parts)
        zeros = [0] * len(dataset.parts)
        self._given_out = Position(0, list(zeros), list(zeros))
        self._planned = copy.deepcopy(self._given_out)  # ahead of it by what workers have begun
        workers = dataset.config.workers
        self._pool = concurrent.futures.ThreadPoolExecutor(workers) if workers else None
        self._begun: collections.deque[tuple[Future[Batch], Position]] = collections.deque()

    def __next__(self) -> Batch:
        if self._pool is None:
            members = self._next_members()
            self._given_out = copy.deepcopy(self._planned)
            return self._make(members)
        while len(self._begun) <= self._dataset.config.workers:
            batch = self._pool.submit(self._make, self._next_members())
            self._begun.append((batch, copy.deepcopy(self._planned)))
        batch, self._given_out = self._begun.popleft()
        return batch.result()

    def get_state(self) -> dict[str, Any]:
        """The position as JSON holds it."""
        return dataclasses.asdict(self._given_out)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position."""
        self._drop_begun()
        self._given_out = Position(state["batch"], list(state["windows"]), list(state["tokens"]))
        self._planned = copy.deepcopy(self._given_out)

    def close(self) -> None:
        """Stops the workers."""
        self._drop_begun()
        if self._pool is not None:
            self._pool.shutdown()

    def _next_members(self) -> list[Window]:
        chosen = self._planner.next_batch(self._planned)
        return [
            (self._dataset.parts[w.source], self._planner.plan(w.source, w.epoch).window(w.number))
            for w in chosen[self._dataset.rows]
        ]

    def _make(self, members: Sequence[Window]) -> Batch:
        return make_batch(members, self._dataset.config.sequence_length, self._dataset.pad_id)

    def _drop_begun(self) -> None:
        while self._begun:
            self._begun.popleft()[0].cancel()


def rows_of_host(batch_size: int, process_index: int, process_count: int) -> slice:
    """The rows of every global batch that one host makes.

    Raises:
      DataError: when the hosts do not divide the batch.
    """
    if batch_size % process_count:
        raise DataError(f"batch_size={batch_size} cannot be divided among {process_count} hosts")
    rows = batch_size // process_count
    return slice(process_index * rows, (process_index + 1) * rows)


def validation_windows(config: DataConfig, examples: AnyExamples, pad_id: int) -> list[Batch]:
    """The first batches of held-out examples; the last is filled with empty windows."""
    plan = plan_packing(examples.lengths, config.sequence_length)
    batches = []
    for first in range(0, len(plan), config.batch_size)[: config.validation_batches]:
        indices = range(first, min(first + config.batch_size, len(plan)))
        members = [(examples, plan.window(index)) for index in indices]
        empty = [(examples, plan.window(0)[:0])] * (config.batch_size - len(members))
        batches.append(make_batch([*members, *empty], config.sequence_length, pad_id))
    return batches


def make_batch(windows: Sequence[Window], sequence_length: int, pad_id: int) -> Batch:
    """Windows as arrays `[windows, sequence_length]`: segments numbered from 1, positions from 0.

    Args:
      windows: what is in each.
      sequence_length: tokens of a window.
      pad_id: token and target of the unused rest.
    """
    shape = (len(windows), sequence_length)
    batch: Batch = {name: np.zeros(shape, dtype) for name, dtype in BATCH_DTYPES.items()}
    batch["tokens"].fill(pad_id)
    batch["targets"].fill(pad_id)
    for row, (examples, members) in enumerate(windows):
        end = 0
        for segment, member in enumerate(members, start=1):
            ids, learnt = examples.example(int(member))
            start, end = end, end + ids.size - 1
            batch["tokens"][row, start:end] = ids[:-1]
            batch["targets"][row, start:end] = ids[1:]
            batch["loss_weights"][row, start:end] = learnt[1:]
            batch["positions"][row, start:end] = np.arange(end - start)
            batch["segment_ids"][row, start:end] = segment
    return batch


def _with_unique_names(
    sources: tuple[SourceExamples, ...], mixture: Mixture
) -> tuple[SourceExamples, ...]:
    """Sources whose short names are equal are called by what the mixture calls them."""
    names = [source.name for source in sources]
    return tuple(
        source if names.count(source.name) == 1 else dataclasses.replace(source, name=full)
        for source, full in zip(sources, mixture.sources, strict=True)
    )


def planned_identity(config: DataConfig, text: PlannedExamples) -> dict[str, Any]:
    """All that decides which windows make the n-th batch."""
    mixture = text.mixture
    return {
        "sources (sha256)": [source.fingerprint for source in text.sources],
        "examples": [len(source.train) for source in text.sources],
        "mixture": [list(mixture.starts), [list(stage) for stage in mixture.weights]],
        "tokenizer (sha256)": text.tokenizer.fingerprint,
        "thinking": config.thinking,
        "sequence_length": config.sequence_length,
        "batch_size": config.batch_size,
        "shuffle_seed": config.shuffle_seed,
    }
