"""From the metrics of runs to numbers per arm: curves, steps to balance, losses, spread."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.ablation.grid import Grid
from experiments.ablation.runs import PlannedRun
from zaya_jax.training.report_data import Run

_SMOOTHING = 8  # steps over which the load entropy is averaged before it is judged


@dataclasses.dataclass(frozen=True)
class Curve:
    """A number at rising steps."""

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What one run showed."""

    seed: int
    learning_rate: float
    validation: Curve  # loss on the first source, nats per token
    entropy: Curve  # normalised load entropy of a step's batch, mean over layers
    residual_rms: tuple[float, ...]  # by depth, at the last step

    @property
    def final_loss(self) -> float:
        """The last validation loss."""
        return self.validation.values[-1]

    @property
    def final_entropy(self) -> float:
        """Mean over the last steps."""
        return float(np.mean(self.entropy.values[-_SMOOTHING:]))


def read_result(run: PlannedRun) -> RunResult:
    """The result of a finished run."""
    metrics = Run.read(run.folder)
    validation = metrics.of_source(metrics.sources[0])
    return RunResult(
        seed=run.seed,
        learning_rate=run.learning_rate,
        validation=Curve(
            tuple(record["step"] for record in validation),
            tuple(record["loss"] for record in validation),
        ),
        entropy=Curve(
            tuple(record["step"] for record in metrics.train),
            tuple(float(np.mean(record["load_entropy"])) for record in metrics.train),
        ),
        residual_rms=tuple(metrics.train[-1]["residual_rms"]),
    )


def steps_until_stays(curve: Curve, level: float, first: int, last: int) -> int | None:
    """Steps after `first` from which the smoothed curve stays at `level` or above up to `last`.

    Smoothed: the mean of the last 8 steps, of those after `first`. None: it is below at the end.
    """
    inside = [(s, v) for s, v in zip(curve.steps, curve.values, strict=True) if first < s <= last]
    smoothed = [
        float(np.mean([v for _, v in inside[max(0, i + 1 - _SMOOTHING) : i + 1]]))
        for i in range(len(inside))
    ]
    below = [i for i, value in enumerate(smoothed) if value < level]
    if not inside or (below and below[-1] == len(inside) - 1):
        return None
    return inside[below[-1] + 1 if below else 0][0] - first


def balance_steps(grid: Grid, result: RunResult) -> tuple[int | None, int | None]:
    """Steps until balanced from the start, and again after the data were switched."""
    last = result.entropy.steps[-1]
    switch = last if grid.switch_step is None else grid.switch_step
    start = steps_until_stays(result.entropy, grid.balance, 0, switch)
    again = steps_until_stays(result.entropy, grid.balance, switch, last) if switch < last else None
    return start, again


def first_step_at(curve: Curve, level: float) -> float | None:
    """Step at which the curve first falls to `level`, interpolated; None: never."""
    for i, value in enumerate(curve.values):
        if value <= level:
            if i == 0:
                return float(curve.steps[0])
            step, before = curve.steps[i - 1], curve.values[i - 1]
            share = (before - level) / (before - value)
            return step + share * (curve.steps[i] - step)
    return None


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean, least and most over seeds; None where some seed gave no number."""

    mean: float | None
    least: float | None
    most: float | None
    values: tuple[float | None, ...]

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread:
        """The spread of one number per seed."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        if len(known) < len(values) or not known:
            return cls(None, None, None, tuple(values))
        return cls(sum(known) / len(known), min(known), max(known), tuple(values))


def read_results(runs: Sequence[PlannedRun]) -> dict[str, list[RunResult]]:
    """The finished runs' results by arm."""
    results: dict[str, list[RunResult]] = {}
    for run in runs:
        if run.is_finished:
            results.setdefault(run.arm, []).append(read_result(run))
    return results


def write_whole(path: Path, text: str) -> Path:
    """Writes a file that is never seen half-written."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, encoding="utf-8")
    return temporary.replace(path)
