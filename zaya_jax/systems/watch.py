"""Judges the heartbeats of a job: does it stand still, was a step slow, which process holds it up.

In a step every process waits for the slowest, so the lengths of steps do not say which one that is.
What each does by itself does: waiting for its data, and a fixed product on its devices.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from zaya_jax.systems.uptime import EventLog

_SLOW_AFTER = 8  # beats before a step can be called slow
_LEAST_SHARE = 0.1  # of a step that a wait for data must exceed the others' by
_OWN_WORK = {"usual_data_wait_seconds": "data", "probe_seconds": "device"}


class Watch:
    """Judges the heartbeats of one attempt."""

    def __init__(
        self, settings: argparse.Namespace, events: EventLog, nodes: Sequence[str] = ()
    ) -> None:
        """`nodes`: where the processes run, when not on this machine."""
        self._settings, self._events, self._nodes = settings, events, nodes
        self._changed = time.monotonic()
        self._steps: dict[int, int] = {}
        self._seconds: dict[int, list[float]] = {}
        self._slowest: dict[int, int] = {}
        self._behind: set[tuple[int, str]] = set()  # stragglers that were told

    def stands_still(self, beats: Mapping[int, Mapping[str, float]]) -> bool:
        """Whether no process has made a step for too long. Slow steps, stragglers are recorded."""
        for process, beat in beats.items():
            if self._steps.get(process) != beat["step"]:
                self._steps[process] = int(beat["step"])
                self._changed = time.monotonic()
                self._note_speed(process, beat)
        self._note_stragglers(beats)
        patience = self._settings.hang_seconds if self._steps else self._settings.start_seconds
        return time.monotonic() - self._changed > patience

    def _note_speed(self, process: int, beat: Mapping[str, float]) -> None:
        seconds = beat["step_seconds"] + beat["data_wait_seconds"]
        history = self._seconds.setdefault(process, [])
        if len(history) >= _SLOW_AFTER:
            usual = statistics.median(history[-32:])
            slowest, step = beat["slowest_seconds"], int(beat["slowest_step"])
            is_new = self._slowest.get(process) != step
            if is_new and slowest > self._settings.slow_factor * usual:
                self._slowest[process] = step
                self._events.write("slow", process=process, step=step, seconds=slowest, usual=usual)
        history.append(seconds)

    def _note_stragglers(self, beats: Mapping[int, Mapping[str, float]]) -> None:
        """Names a process whose own work takes longer than that of the others, once."""
        for process, what, seconds, others in stragglers(beats, self._settings.straggler_factor):
            if (process, what) not in self._behind:
                self._behind.add((process, what))
                place: dict[str, Any] = {"node": self._nodes[process]} if self._nodes else {}
                self._events.write(
                    "straggler", process=process, what=what, seconds=seconds, others=others, **place
                )


def stragglers(
    beats: Mapping[int, Mapping[str, float]], factor: float
) -> list[tuple[int, str, float, float]]:
    """Processes that hold the others up.

    Args:
      beats: newest heartbeat of each process.
      factor: times the median of the others' seconds.

    Returns:
      Process, "data" or "device", its seconds, and the median of the others'.
    """
    if len(beats) < 2:
        return []
    step = statistics.median(b["step_seconds"] + b["data_wait_seconds"] for b in beats.values())
    found = []
    for name, what in _OWN_WORK.items():
        own = {process: beat[name] for process, beat in beats.items()}
        if what == "device" and not all(own.values()):
            continue  # not measured yet
        least = _LEAST_SHARE * step if what == "data" else 0.0
        for process, seconds in own.items():
            others = statistics.median(s for p, s in own.items() if p != process)
            if seconds > factor * others and seconds - others > least:
                found.append((process, what, seconds, others))
    return found
