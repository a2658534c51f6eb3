"""The supervisor's record of a run, and what share of its time went into steps that count."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from zaya_jax.checkpoint.tiers import last_finished
from zaya_jax.training.metrics_file import MetricsError, read_metrics
from zaya_jax.training.workdir import make_workdir

LOG = "supervisor.jsonl"


@dataclasses.dataclass(frozen=True)
class Uptime:
    """Figures of a supervised run."""

    seconds: float  # since the supervisor began
    failures: int
    goodput: float  # share of that time spent in steps that the run kept
    mean_seconds_between_failures: float | None  # None: there was none


class EventLog:
    """Appends one JSON object a line to WORKDIR/supervisor.jsonl."""

    def __init__(self, workdir: Path) -> None:
        make_workdir(workdir)
        self._path = workdir / LOG

    def write(self, event: str, **details: Any) -> None:
        """One event, on the disk when this returns to the system."""
        record = {"time": time.time(), "event": event, **details}
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def last_checkpoint(workdir: Path) -> int:
    """The newest finished checkpoint; -1 where there is none."""
    return last_finished(workdir / "checkpoints")


def uptime(workdir: Path, started: float, failures: int) -> Uptime:
    """Figures so far. Steps that were repeated after a restart count once."""
    seconds = max(time.time() - started, 1e-9)
    useful = 0.0
    with contextlib.suppress(MetricsError):  # the run has not finished its first step
        useful = sum(
            record["step_seconds"] + record["data_wait_seconds"]
            for record in read_metrics(workdir)
            if record["kind"] == "train" and record["time"] >= started
        )
    between = seconds / failures if failures else None
    return Uptime(seconds, failures, min(useful / seconds, 1.0), between)
