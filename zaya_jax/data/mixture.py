"""Weighted mixtures: which source gives the next window.

    ("web.jsonl=0.9", "maths.parquet=0.1")                 shares of tokens
    ("web.jsonl=0.9/1000:0.5", "maths.parquet=0.1/1000:0.5")   other shares from batch 1000 on

The next window comes from the source that is furthest behind its share of the tokens given out
since the stage began. There is no chance in it, so nothing but counts has to be saved.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence

from zaya_jax.data.config import DataConfig, DataError


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Sources and their weights by stage.

    Attributes:
      sources: names, paths or URLs.
      starts: batch with which each stage begins; the first is 0.
      weights: of each source, for each stage; at least 0, not all 0.
    """

    sources: tuple[str, ...]
    starts: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]

    def stage(self, batch: int) -> int:
        """The stage that batch number `batch` (from 0) belongs to."""
        return bisect.bisect_right(self.starts, batch) - 1


def mixture_of(config: DataConfig) -> Mixture:
    """The mixture a data config names; one source alone when it names none.

    Raises:
      DataError: for an entry that cannot be read, a source that is never used, or a stage in which
        every weight is 0.
    """
    if not config.mixture:
        return Mixture((config.source,), (0,), ((1.0,),))
    parsed = [_parse(entry) for entry in config.mixture]
    sources = tuple(source for source, _ in parsed)
    if len(set(sources)) < len(sources):
        raise DataError(f"mixture={config.mixture!r} names a source twice; add up its weights")
    starts = tuple(sorted({start for _, steps in parsed for start, _ in steps}))
    weights = tuple(tuple(_weight_at(steps, start) for _, steps in parsed) for start in starts)
    for source, own in zip(sources, zip(*weights, strict=True), strict=True):
        if not any(own):
            raise DataError(
                f"mixture entry {source!r} has weight 0: it would never be read; take it out or "
                "give it a positive weight"
            )
    for start, stage in zip(starts, weights, strict=True):
        if not any(stage):
            raise DataError(f"mixture={config.mixture!r}: every weight is 0 from batch {start} on")
    return Mixture(sources, starts, weights)


def next_source(tokens: Sequence[int], weights: Sequence[float]) -> int:
    """The source furthest behind its share; the first one among equals.

    Args:
      tokens: given out by each source since the stage began.
      weights: of the stage.
    """
    usable = [index for index, weight in enumerate(weights) if weight > 0]
    return min(usable, key=lambda index: (tokens[index] / weights[index], index))


def _parse(entry: str) -> tuple[str, list[tuple[int, float]]]:
    """A source and its (first batch, weight) pairs, the first at batch 0."""
    source, _, schedule = entry.rpartition("=")
    first, *later = schedule.split("/")
    try:
        steps = [(0, float(first))]
        for change in later:
            start, _, weight = change.partition(":")
            steps.append((int(start), float(weight)))
    except ValueError:
        steps = []
    rising = all(a < b for (a, _), (b, _) in itertools.pairwise(steps))
    if not source or not steps or not rising or not all(0 <= w < float("inf") for _, w in steps):
        raise DataError(
            f"mixture entry {entry!r} is not SOURCE=WEIGHT or SOURCE=WEIGHT/BATCH:WEIGHT with "
            "weights of at least 0 and rising batches"
        )
    return source, steps


def _weight_at(steps: list[tuple[int, float]], start: int) -> float:
    return [weight for first, weight in steps if first <= start][-1]
