"""Records a profile of a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from zaya_jax.training.settings import ProfileConfig


class Profiler:
    """Traces steps `start` to `start + steps - 1` into a folder; a context manager.

    It waits for the device at both ends, so the trace holds whole steps and only those.
    """

    def __init__(self, config: ProfileConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._is_tracing = False

    def before(self, step: int, state: Any) -> None:
        """Call before dispatching `step` with the state it will read."""
        if self._config.start > 0 and step == self._config.start:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self._folder))
            self._is_tracing = True

    def after(self, step: int, results: Any) -> None:
        """Call after dispatching `step` with what it will compute."""
        if self._is_tracing and step >= self._config.start + self._config.steps - 1:
            jax.block_until_ready(results)
            self._stop()

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_tracing:  # the run ended first
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._is_tracing = False
