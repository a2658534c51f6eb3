"""How far a long copy has come: a bar on a terminal, a line every tenth elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich import progress as rich_progress
from rich.console import Console

_LEAST_BYTES = 100_000_000  # below that no lines: the copy is over before they are read


class Progress:
    """Counts bytes towards a total. Messages go to standard error. Not thread-safe."""

    def __init__(self, label: str, total_bytes: int, *, shown: bool = True) -> None:
        self._label, self._total, self._shown = label, max(total_bytes, 1), shown
        self._done, self._tenths, self._start = 0, 0, time.monotonic()
        self._bar: rich_progress.Progress | None = None

    def __enter__(self) -> Progress:
        if self._shown and sys.stderr.isatty():
            self._bar = rich_progress.Progress(
                rich_progress.TextColumn("{task.description}"),
                rich_progress.BarColumn(),
                rich_progress.DownloadColumn(),
                rich_progress.TransferSpeedColumn(),
                rich_progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """Notes that many more bytes."""
        self._done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif (
            self._shown
            and self._total >= _LEAST_BYTES
            and self._done * 10 // self._total > self._tenths
        ):
            self._tenths = self._done * 10 // self._total
            speed = self._done / max(time.monotonic() - self._start, 1e-9)
            print(
                f"{self._label} {self._tenths * 10}% of {self._total / 1e9:.2f} GB, "
                f"{speed / 1e9:.2f} GB/s",
                file=sys.stderr,
                flush=True,
            )
