"""Progress of a run on the terminal: a live bar, or plain lines where stdout is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Events of every few steps, worth a record but not a line.
_QUIET_EVENTS = frozenset({"checkpoint"})


def terminal_writer(total_steps: int, resume_step: int, plain_every: int) -> BarWriter | LineWriter:
    """The writer that suits stdout as it is now."""
    if sys.stdout.isatty():
        return BarWriter(total_steps, resume_step)
    return LineWriter(total_steps, plain_every)


class BarWriter:
    """A progress bar with the latest loss and speed; validation and events scroll above it."""

    def __init__(self, total_steps: int, resume_step: int) -> None:
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=Console(highlight=False),
            expand=True,
        )
        self._task = self._progress.add_task(
            "train", total=total_steps, completed=resume_step, numbers="compiling"
        )
        self._progress.start()

    def write(self, record: Mapping[str, Any]) -> None:
        """Move the bar, or print a line above it."""
        if record["kind"] == "train":
            numbers = f"loss [bold]{_number(record.get('loss'), '.3f')}[/bold]  {_speed(record)}"
            self._progress.update(self._task, completed=record["step"], numbers=numbers)
        elif is_shown(record):
            self._progress.console.print(escape(describe(record)))

    def flush(self) -> None:
        """Draw the latest state."""
        self._progress.refresh()

    def close(self) -> None:
        """Leave the bar as it stands and give the terminal back."""
        self._progress.stop()


class LineWriter:
    """One line every few steps, for logs and pipes."""

    def __init__(self, total_steps: int, every: int) -> None:
        self._total_steps = total_steps
        self._every = every
        self._first: tuple[int, float] | None = None  # step and time of the first train record

    def write(self, record: Mapping[str, Any]) -> None:
        """Print the record if its turn has come; validation and events always have it."""
        step = record["step"]
        if record["kind"] != "train":
            if is_shown(record):
                print(describe(record), flush=True)
            return
        is_first = self._first is None
        if self._first is None:
            self._first = (step, record["time"])
        if is_first or step % self._every == 0 or step == self._total_steps:
            print(f"{describe(record, self._total_steps)}{self._time_left(record)}", flush=True)

    def flush(self) -> None:
        """Hand the lines to the system."""
        sys.stdout.flush()

    def close(self) -> None:
        """Hand the lines to the system; the stream stays open."""
        self.flush()

    def _time_left(self, record: Mapping[str, Any]) -> str:
        first_step, first_time = self._first or (0, 0.0)
        steps, seconds = record["step"] - first_step, record["time"] - first_time
        if steps < 1 or record["step"] >= self._total_steps:
            return ""
        return f"  {_clock((self._total_steps - record['step']) * seconds / steps)} left"


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether the terminal shows this record at all."""
    return record["kind"] != "event" or record["name"] not in _QUIET_EVENTS


def describe(record: Mapping[str, Any], total_steps: int | None = None) -> str:
    """One line of text for any record."""
    step = record["step"]
    if record["kind"] == "event":
        return f"step {step}: {record['name']} {record.get('detail') or ''}".rstrip()
    loss, accuracy = _number(record.get("loss"), ".3f"), _number(record.get("accuracy"), ".1%")
    if record["kind"] == "validation":
        source = record["source"]
        return f"step {step}: validation on {source}: loss {loss}, {accuracy} of tokens right"
    total = "" if total_steps is None else str(total_steps)
    place = f"step {step:>{len(total) or 1}}" + (f"/{total}" if total else "")
    return f"{place}  loss {loss}  accuracy {accuracy}  {_speed(record)}"


def _speed(record: Mapping[str, Any]) -> str:
    return f"{_number(record.get('tokens_per_second'), ',.0f')} tokens/s"


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
