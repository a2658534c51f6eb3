"""An RL run on the terminal: a live table, or plain lines where stdout is not a terminal.

    step 41/120 ------------          0:03:10 left 0:05:20
    problems          reward   difficulty   solved, held out
    practice/sort      0.710            2              66.0%
    entropy 0.140  kl 1.1e-13  blocked 0.000  flips 0.00%

Both take the records that go to `metrics.jsonl`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

REWARD, DIFFICULTY = "reward/", "difficulty/"  # prefixes of a source's metrics
ALL_SOURCES = "all"  # the source of measurements of all environments' problems together
_MOST_SOURCES = 12  # rows of the table; those with the lowest reward are the ones to look at

# What the line below the table says of the last step: metric, label, format.
_FIGURES = (
    ("entropy", "entropy", ".3f"),
    ("kl_k3", "kl", ".1e"),
    ("blocked", "blocked", ".3f"),
    ("flipped_routes", "flips", ".2%"),
    ("policy_age_max", "oldest policy", ".0f"),
    ("workers_idle_share", "workers idle", ".0%"),
)


def rl_terminal_writer(total_steps: int, resume_step: int) -> LiveTable | PlainLines:
    """The writer that suits stdout as it is now."""
    if sys.stdout.isatty():
        return LiveTable(total_steps, resume_step)
    return PlainLines(total_steps)


class PlainLines:
    """A line for every step, for logs and pipes; measurements print lines of their own."""

    def __init__(self, total_steps: int) -> None:
        self._total_steps = total_steps

    def write(self, record: Mapping[str, Any]) -> None:
        """Print a step."""
        if record["kind"] == "train":
            print(describe_step(record, self._total_steps), flush=True)

    def flush(self) -> None:
        """Hand the lines to the system."""
        sys.stdout.flush()

    def close(self) -> None:
        """Hand the lines to the system; the stream stays open."""
        self.flush()


class LiveTable:
    """A bar, a row for each source of problems and a line of figures, drawn anew at every step.

    What is printed meanwhile scrolls above it.
    """

    def __init__(self, total_steps: int, resume_step: int, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            expand=True,
        )
        self._task = self._bar.add_task("train", total=total_steps, completed=resume_step)
        self._last: Mapping[str, Any] = {}
        self._held_out: dict[str, float] = {}
        console = console or Console(highlight=False)
        self._live = Live(self._drawing(), console=console, refresh_per_second=2)
        self._live.start()

    def write(self, record: Mapping[str, Any]) -> None:
        """Draw the record's numbers."""
        if record["kind"] == "train":
            self._last = record
            self._bar.update(self._task, completed=record["step"])
        elif record["kind"] == "validation":
            self._held_out[record["source"]] = record["solve_rate"]
        self._live.update(self._drawing())

    def flush(self) -> None:
        """Draw the latest state."""
        self._live.refresh()

    def close(self) -> None:
        """Leave the table as it stands."""
        self._live.stop()

    def _drawing(self) -> RenderableType:
        figures = [
            f"{label} {format(self._last[name], spec)}"
            for name, label, spec in _FIGURES
            if name in self._last
        ]
        return Group(self._bar, source_table(self._last, self._held_out), "  ".join(figures))


def source_table(record: Mapping[str, Any], held_out: Mapping[str, float]) -> Table:
    """Rewards, difficulties and solve rates by source, the lowest reward first."""
    rewards = {
        name.removeprefix(REWARD): value
        for name, value in record.items()
        if name.startswith(REWARD)
    }
    sources = sorted({*rewards, *held_out} - {ALL_SOURCES}, key=lambda name: rewards.get(name, 2.0))
    table = Table("problems", expand=True)
    for heading in ("reward", "difficulty", "solved, held out"):
        table.add_column(heading, justify="right")
    for name in sources[:_MOST_SOURCES]:
        table.add_row(
            escape(name),
            _number(rewards.get(name), ".3f"),
            _number(record.get(DIFFICULTY + name), "d"),
            _number(held_out.get(name), ".1%"),
        )
    if len(sources) > _MOST_SOURCES:
        table.add_row(f"and {len(sources) - _MOST_SOURCES} more", "", "", "")
    if record:
        solved = f"{held_out[ALL_SOURCES]:.1%}" if ALL_SOURCES in held_out else ""
        reward = _number(record["reward"], ".3f")
        table.add_row(ALL_SOURCES, reward, "", solved, end_section=True)
    return table


def describe_step(record: Mapping[str, Any], total_steps: int) -> str:
    """A step as one line."""
    return (
        f"step {record['step']}/{total_steps}  reward {record['reward']:.3f}  kept "
        f"{record['groups_kept']} of {record['groups_kept'] + record['groups_dropped']} groups  "
        f"entropy {record['entropy']:.3f}  kl {record['kl_k3']:.1e}  blocked "
        f"{record['blocked']:.3f}  {record['sample_seconds']:.1f} + {record['train_seconds']:.1f} s"
    )


def _number(value: Any, spec: str) -> str:
    return "-" if value is None else format(value, spec)
