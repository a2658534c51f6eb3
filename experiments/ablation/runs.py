"""The runs of a grid: where they are, which are finished, and making the others one by one."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.ablation.grid import Grid, changed
from experiments.ablation.matching import MatchedArm
from experiments.pretrain import pretrain
from zaya_jax.config import ConfigError
from zaya_jax.training.finish import finished_step
from zaya_jax.training.metrics_file import read_metrics
from zaya_jax.training.preemption import StopSignal
from zaya_jax.training.resolved import setting_differences
from zaya_jax.training.settings import RunConfig


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One training run of an arm."""

    arm: str
    seed: int
    config: RunConfig
    folder: Path

    @property
    def learning_rate(self) -> float:
        """The peak."""
        return self.config.optimizer.peak_learning_rate

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds all of it.

        Raises:
          ConfigError: when it holds a run of other settings.
        """
        file = self.folder / "config.json"
        if not file.is_file():
            return False
        differences = setting_differences(json.loads(file.read_text()), self.config)
        if differences:
            raise ConfigError(
                f"{self.folder} holds a run of other settings (saved -> asked for): "
                f"{', '.join(differences)}. Choose another --workdir, or remove that folder"
            )
        return finished_step(self.folder) == self.config.train.steps

    def final_loss(self) -> float:
        """The last validation loss on the first source; infinite where the run broke off."""
        records = [r for r in read_metrics(self.folder) if r["kind"] == "validation"]
        source = records[0]["source"] if records else None
        return [math.inf, *(r["loss"] for r in records if r["source"] == source)][-1]


def first_runs(grid: Grid, arms: Sequence[MatchedArm], workdir: Path) -> list[PlannedRun]:
    """The first seed of every arm, with every learning rate that is to be tried."""
    return [
        _plan(arm, grid.seeds[0], rate, workdir)
        for arm in arms
        for rate in grid.learning_rates or (arm.config.optimizer.peak_learning_rate,)
    ]


def best_of(runs: Sequence[PlannedRun], arm: str) -> PlannedRun:
    """The arm's run of the least final loss; all must be finished."""
    return min((run for run in runs if run.arm == arm), key=PlannedRun.final_loss)


def later_runs(
    grid: Grid, arms: Sequence[MatchedArm], firsts: Sequence[PlannedRun], workdir: Path
) -> Iterator[PlannedRun]:
    """The other seeds of every arm, at its best learning rate."""
    for arm in arms:
        rate = best_of(firsts, arm.name).learning_rate
        for seed in grid.seeds[1:]:
            yield _plan(arm, seed, rate, workdir)


def make(run: PlannedRun, stop: StopSignal) -> int:
    """Makes what is missing of a run; 0 when it is then finished."""
    return 0 if run.is_finished else pretrain(run.config, run.folder, stop)


def _plan(arm: MatchedArm, seed: int, learning_rate: float, workdir: Path) -> PlannedRun:
    optimizer = arm.config.optimizer
    final = optimizer.final_learning_rate * learning_rate / optimizer.peak_learning_rate
    changes = {
        "optimizer.peak_learning_rate": learning_rate,
        "optimizer.final_learning_rate": final,
        "train.seed": seed,
        "data.shuffle_seed": seed,
    }
    folder = workdir / arm.name / f"rate_{learning_rate:g}_seed_{seed}"
    return PlannedRun(arm.name, seed, changed(arm.config, changes), folder)
