"""What the report draws from: a run's records by kind, and their reduction to few points."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.training.metrics_file import MetricsError, Record, read_metrics
from zaya_jax.training.report_plots import Number, Series

FloatArray = np.ndarray[Any, np.dtype[np.float64]]


class Run:
    """A run's records by kind, and its settings where config.json exists."""

    def __init__(self, records: Sequence[Record], config: dict[str, Any] | None) -> None:
        self.train = [record for record in records if record["kind"] == "train"]
        self.validation = [record for record in records if record["kind"] == "validation"]
        self.events = [record for record in records if record["kind"] == "event"]
        self.config = config
        self.sources = list(dict.fromkeys(record["source"] for record in self.validation))
        if not self.train:
            raise MetricsError("the run has not finished a step yet; there is nothing to plot")

    @classmethod
    def read(cls, workdir: Path) -> Run:
        """Reads a workdir; see `write_report` for the errors."""
        records = read_metrics(workdir)
        path = workdir / "config.json"
        if not path.exists():
            return cls(records, None)
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise MetricsError(f"{path} is not JSON ({error}); restore or remove it") from error
        return cls(records, config)

    def of_source(self, source: str) -> list[Record]:
        """The validation records of one source."""
        return [record for record in self.validation if record["source"] == source]

    @property
    def unigram_entropy(self) -> float | None:
        """Nats per token of the best model without context, where the run recorded it."""
        values = [record.get("unigram_entropy") for record in self.validation]
        return next((value for value in values if value is not None), None)


class Stretches:
    """Cuts records into at most `count` runs of neighbours and reduces a metric over each.

    Numbers that are missing, NaN or infinite are left out; a stretch of nothing else gives None.
    """

    def __init__(self, records: Sequence[Record], count: int) -> None:
        size = math.ceil(len(records) / count)
        self._records = records
        self._starts = np.arange(0, len(records), size)
        last = np.minimum(self._starts + size, len(records)) - 1
        self.x = [float(records[i]["step"]) for i in last]

    def series(self, name: str, label: str, style: str) -> Series:
        """The metric's mean as a line, with its extremes as a band where stretches are cut."""
        values = _matrix(self._records, name)[:, 0]
        mean = _optional(self._mean(values))
        if len(self.x) == len(self._records):
            return Series(label, mean, style)
        low, high = (_optional(f.reduceat(values, self._starts)) for f in (np.fmin, np.fmax))
        return Series(label, mean, style, low, high)

    def over_layers(
        self, name: str, reduce: Callable[[FloatArray], FloatArray], label: str, style: str
    ) -> Series:
        """A vector metric reduced over layers (the last axis), then averaged over each stretch."""
        return Series(label, _optional(self._mean(reduce(_matrix(self._records, name)))), style)

    def by_layer(self, name: str) -> list[list[Number]]:
        """The means of a vector metric, a row per layer."""
        matrix = _matrix(self._records, name)
        return [_optional(self._mean(matrix[:, layer])) for layer in range(matrix.shape[1])]

    def _mean(self, values: FloatArray) -> FloatArray:
        is_known = np.isfinite(values)
        sums = np.add.reduceat(np.where(is_known, values, 0.0), self._starts)
        counts = np.add.reduceat(is_known.astype(np.int64), self._starts)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _matrix(records: Sequence[Record], name: str) -> FloatArray:
    """A metric as [records, layers] (one layer for a scalar), NaN where it is not finite."""
    rows = [value if isinstance(value := record.get(name), list) else [value] for record in records]
    matrix = np.full((len(rows), max(1, *map(len, rows))), np.nan)
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = [np.nan if entry is None else entry for entry in row]
    return np.where(np.isfinite(matrix), matrix, np.nan)


def _optional(values: FloatArray) -> list[Number]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def finite(value: Any, layer: int | None = None) -> float | None:
    """The number, or one layer of a vector; None when it is missing or not finite."""
    if layer is not None:
        value = value[layer] if isinstance(value, list) and layer < len(value) else None
    return float(value) if is_finite(value) else None


def is_finite(value: Any) -> bool:
    """Whether it is a number that can be drawn."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def total(records: Sequence[Record], name: str) -> float:
    """The sum of a metric over the records that have it."""
    return sum(value for r in records if (value := finite(r.get(name))) is not None)
