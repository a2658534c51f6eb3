"""Stopping on SIGTERM or SIGINT at a step boundary, with nothing lost."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Remembers the first signal; a second one ends the process at once.

    A context manager; the handlers found on entry are put back on exit. Only for the main thread.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    @property
    def received(self) -> signal.Signals | None:
        """The signal that asks the run to stop, if any."""
        return self._received

    @property
    def exit_status(self) -> int:
        """128 + signal, as shells report it; 0 when none came."""
        return 0 if self._received is None else 128 + self._received

    def __enter__(self) -> StopSignal:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            os._exit(128 + number)
        self._received = signal.Signals(number)
        # os.write: print is not safe in the middle of another print.
        message = (
            f"\n{self._received.name}: saving at the end of this step; once more to quit now\n"
        )
        os.write(sys.stderr.fileno(), message.encode())
