"""Held-out loss of each source, on the same batches every time."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import jax

from zaya_jax.data.pipeline import Batch, unigram_entropy
from zaya_jax.training.placement import Placement
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import TrainState, abstract_batch
from zaya_jax.training.step import validation_step


class TrainingError(ValueError):
    """Training cannot go on. The message names step and value and a mend."""


class Validator:
    """Computes validation records; one compiled function for all sources."""

    def __init__(
        self, config: RunConfig, placement: Placement, batches: dict[str, list[Batch]]
    ) -> None:
        self._config = config
        self._placement = placement
        self._batches = batches
        self._unigram_entropy = {source: unigram_entropy(part) for source, part in batches.items()}
        self._step: Any = jax.jit(
            functools.partial(validation_step, config), out_shardings=placement.replicated()
        )

    def compile(self, state: TrainState) -> None:
        """Compiles ahead, so that no validation is slower than another."""
        batch = self._placement.abstract_batch(abstract_batch(self._config.data))
        with self._placement.in_force():
            self._step = self._step.lower(state.variables, state.base, batch).compile()

    def records(self, step: int, state: TrainState) -> list[dict[str, Any]]:
        """One record per source: the mean over the weight of all its batches.

        Raises:
          TrainingError: when a loss is not finite.
        """
        return [
            self._record(step, state, source, self._batches[source]) for source in self._batches
        ]

    def _record(
        self, step: int, state: TrainState, source: str, batches: list[Batch]
    ) -> dict[str, Any]:
        # All batches are dispatched before the first result is read.
        place = self._placement.place_whole_batch
        sums = jax.device_get(
            [self._step(state.variables, state.base, place(batch)) for batch in batches]
        )
        weight = sum(float(part.weight) for part in sums)
        loss = sum(float(part.loss) for part in sums) / weight
        if not math.isfinite(loss):
            raise TrainingError(f"step {step}: the validation loss on {source} is {loss}")
        return {
            "kind": "validation",
            "step": step,
            "time": time.time(),
            "source": source,
            "loss": loss,
            "accuracy": sum(float(part.correct) for part in sums) / weight,
            "tokens": int(sum(float(part.tokens) for part in sums)),
            "unigram_entropy": self._unigram_entropy[source],  # the loss of word counts alone
        }
