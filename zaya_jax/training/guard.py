"""Takes the steps of a run that looks at every loss before it goes on. See `watchdog`."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zaya_jax.training.validation import TrainingError
from zaya_jax.training.watchdog import BadLossPolicy, GuardConfig, LossHistory, same_bits

# State, batch and the highest good loss -> state, metrics.
GuardedStep = Callable[[Any, Mapping[str, Any], Any], tuple[Any, Any]]


class Outcome(enum.StrEnum):
    """What became of a step."""

    TAKEN = "taken"
    SKIPPED = "skipped"  # the batch moved nothing
    REWIND = "rewind"  # the caller goes back to the last checkpoint


class Event(NamedTuple):
    """Something for the run's record."""

    name: str
    detail: str


class Guard:
    """Takes steps by a policy; counts the bad ones."""

    def __init__(self, config: GuardConfig, step: GuardedStep) -> None:
        self._config = config
        self._step = step
        self._history = LossHistory(config)
        self._bad_steps = 0

    def take(
        self, number: int, state: Any, batch: Mapping[str, Any]
    ) -> tuple[Any, Any, Outcome, list[Event]]:
        """One step; waits for its loss, and tries a bad one again.

        Returns:
          The new state, the metrics, what became of the step, and what to record.

        Raises:
          TrainingError: after `most_bad_steps` bad steps.
        """
        limit = self._history.limit
        state, metrics = self._step(state, batch, jnp.float32(limit))
        if self._is_good(metrics, limit):
            return state, metrics, Outcome.TAKEN, []
        first = metrics
        state = dataclasses.replace(state, step=state.step - 1)
        state, metrics = self._step(state, batch, jnp.float32(limit))
        events = []
        if not same_bits(first, metrics):
            events.append(
                Event(
                    "hardware",
                    f"step {number} run twice differs: {_shown(first)}, "
                    f"then {_shown(metrics)}; check the device",
                )
            )
        if self._is_good(metrics, limit):
            return state, metrics, Outcome.TAKEN, events
        self._bad_steps += 1
        if self._bad_steps > self._config.most_bad_steps:
            raise TrainingError(
                f"step {number}: {_shown(metrics)}, bad step {self._bad_steps} of this run; more "
                f"than guard.most_bad_steps={self._config.most_bad_steps}. Lower "
                "optimizer.peak_learning_rate or look at the data"
            )
        outcome = Outcome.REWIND if self._config.policy is BadLossPolicy.REWIND else Outcome.SKIPPED
        bad = not math.isfinite(float(metrics.loss)) or not math.isfinite(float(metrics.grad_norm))
        reason = "is not finite" if bad else f"is above {limit:.4g}"
        events.append(Event("bad loss", f"{_shown(metrics)} {reason}, also when run again"))
        return state, metrics, outcome, events

    def _is_good(self, metrics: Any, limit: float) -> bool:
        """The same rule as inside the program; a good loss enters the history."""
        loss, norm = (float(x) for x in jax.device_get((metrics.loss, metrics.grad_norm)))
        if not (math.isfinite(loss) and math.isfinite(norm) and loss <= limit):
            return False
        self._history.add(loss)
        return True


def _shown(metrics: Any) -> str:
    loss, norm = (float(x) for x in jax.device_get((metrics.loss, metrics.grad_norm)))
    return f"loss {loss:.6g}, gradient norm {norm:.6g}"
