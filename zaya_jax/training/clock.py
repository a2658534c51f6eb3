"""Where a run's time goes: steps, waiting for data, checkpoints, validation, compiling.

Steps run on the device while Python is already elsewhere, so a step is not timed by itself: the
clock takes the time between the ends of two steps and subtracts what Python knows it spent on
other things. Goodput is the share of all time since the start of the process's run that is left
for steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator


@dataclasses.dataclass
class Interval:
    """Seconds between the ends of two steps, by kind."""

    step: float = 0.0  # computing
    data_wait: float = 0.0  # no batch was ready
    checkpoint: float = 0.0  # training stood still for a checkpoint
    validation: float = 0.0
    compile: float = 0.0  # compiling, and making or restoring the first state


class Clock:
    """Measures one process's part of a run."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._start = now()
        self._last = self._start
        self._current = Interval()
        self._step_total = 0.0

    @contextlib.contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Books the time of a block as `kind`, a field of `Interval`."""
        begin = self._now()
        try:
            yield
        finally:
            spent = getattr(self._current, kind) + self._now() - begin
            setattr(self._current, kind, spent)

    def end_of_step(self) -> Interval:
        """Call when a step's results have arrived: closes the interval and begins the next."""
        now, done = self._now(), self._current
        other = done.data_wait + done.checkpoint + done.validation + done.compile
        done.step = max(now - self._last - other, 0.0)
        self._last, self._current = now, Interval()
        self._step_total += done.step
        return done

    @property
    def goodput(self) -> float:
        """Share of the time until the last end of a step that went into steps."""
        total = self._last - self._start
        return self._step_total / total if total > 0 else 0.0
