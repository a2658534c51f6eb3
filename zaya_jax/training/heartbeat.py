"""Signs of life for whoever watches a run from outside, and stacks on request.

    WORKDIR/heartbeats/<process>.json    step, seconds of its parts, Unix time; replaced every step

SIGUSR1 makes a process print the stacks of all its threads to standard error and go on; that works
while the main thread is stuck inside a library, too.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

FOLDER = "heartbeats"
_RECENT = 64  # steps among which the slowest is told
_RECENT_WAITS = 16  # steps whose usual wait for data is told


class Heartbeat:
    """Writes one process' file."""

    def __init__(self, workdir: Path, process: int) -> None:
        self._path = workdir / FOLDER / f"{process}.json"
        self._recent: collections.deque[tuple[float, int]] = collections.deque(maxlen=_RECENT)
        self._waits: collections.deque[float] = collections.deque(maxlen=_RECENT_WAITS)
        self.probe_seconds = 0.0  # of a fixed product on this process' devices; 0 = not timed

    def beat(self, step: int, step_seconds: float, data_wait_seconds: float) -> None:
        """Says that a step is done and how long its parts took on this process."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._recent.append((step_seconds + data_wait_seconds, step))
        self._waits.append(data_wait_seconds)
        slowest_seconds, slowest_step = max(self._recent)
        record = {
            "pid": os.getpid(),
            "step": step,
            "step_seconds": step_seconds,
            "data_wait_seconds": data_wait_seconds,
            "slowest_seconds": slowest_seconds,  # who watches misses most of the quick ones
            "slowest_step": slowest_step,
            "usual_data_wait_seconds": statistics.median(self._waits),
            "probe_seconds": self.probe_seconds,
            "time": time.time(),
        }
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(record))
        temporary.rename(self._path)


def read_heartbeats(workdir: Path) -> dict[int, dict[str, Any]]:
    """The newest beat of every process; a file that is being replaced is left out."""
    found = {}
    for path in sorted((workdir / FOLDER).glob("*.json")):
        try:
            found[int(path.stem)] = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
    return found


def dump_stacks_on_request() -> None:
    """From now on SIGUSR1 prints the stacks of all threads."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
