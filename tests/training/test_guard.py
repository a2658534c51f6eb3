"""Bad losses are found, tried again, and skipped or rewound; device faults are told from data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import flax.struct
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.config import ConfigError
from zaya_jax.training.guard import Guard, Outcome
from zaya_jax.training.validation import TrainingError
from zaya_jax.training.watchdog import GuardConfig, LossHistory, guarded_step


@flax.struct.dataclass
class State:
    step: Any
    weight: Any


class Metrics(NamedTuple):
    loss: Any
    grad_norm: Any


def _step(state: State, batch: dict[str, Any]) -> tuple[State, Metrics]:
    loss = jnp.asarray(batch["loss"], jnp.float32)
    new = State(state.step + 1, state.weight + loss)
    return new, Metrics(loss, jnp.float32(1.0))


def _start() -> State:
    return State(jnp.int32(4), jnp.float32(1.0))


@pytest.mark.parametrize(("loss", "weight"), [(2.0, 3.0), (math.nan, 1.0), (9.0, 1.0)])
def test_a_bad_step_moves_nothing_but_the_count(loss: float, weight: float):
    state, metrics = guarded_step(_step, _start(), {"loss": loss}, jnp.float32(5.0))
    assert (int(state.step), float(state.weight)) == (5, weight)
    np.testing.assert_equal(float(metrics.loss), loss)


def _guard(step: Any = None, **changes: Any) -> Guard:
    def compiled(state: State, batch: dict[str, Any], limit: Any) -> tuple[State, Metrics]:
        return guarded_step(step or _step, state, batch, limit)

    return Guard(GuardConfig(**{"policy": "skip", **changes}), compiled)


def test_the_same_bits_twice_blame_data_and_skip_the_batch():
    state, _, outcome, events = _guard().take(5, _start(), {"loss": math.nan})
    assert outcome is Outcome.SKIPPED
    assert (int(state.step), float(state.weight)) == (5, 1.0)
    assert [event.name for event in events] == ["bad loss"]
    assert "is not finite, also when run again" in events[0].detail


def test_other_bits_the_second_time_blame_the_device_and_take_the_good_result():
    calls: list[int] = []

    def flaky(state: State, batch: dict[str, Any]) -> tuple[State, Metrics]:
        calls.append(1)
        return _step(state, {"loss": math.nan if len(calls) == 1 else 2.0})

    state, _, outcome, events = _guard(flaky).take(5, _start(), {})
    assert outcome is Outcome.TAKEN
    assert (int(state.step), float(state.weight)) == (5, 3.0)
    assert [event.name for event in events] == ["hardware"]


def test_a_spike_is_seen_once_there_are_enough_losses():
    guard = _guard(spike_factor=2.0, spike_window=3, policy="rewind")
    state = _start()
    for number, loss in enumerate((50.0, 3.0, 2.0, 3.0, 2.5)):
        state, _, outcome, _ = guard.take(number, state, {"loss": loss})
        assert outcome is Outcome.TAKEN
    assert guard.take(5, state, {"loss": 5.9})[2] is Outcome.REWIND
    assert guard.take(5, state, {"loss": 4.9})[2] is Outcome.TAKEN


def test_bad_losses_do_not_raise_the_limit():
    history = LossHistory(GuardConfig(policy="skip", spike_factor=3.0, spike_window=2))
    history.add(1.0)
    assert history.limit == math.inf
    history.add(2.0)
    assert history.limit == 4.5


def test_too_many_bad_steps_stop_the_run():
    guard = _guard(most_bad_steps=1)
    guard.take(5, _start(), {"loss": math.inf})
    with pytest.raises(TrainingError, match=r"step 6: loss inf.*guard\.most_bad_steps=1"):
        guard.take(6, _start(), {"loss": math.inf})


@pytest.mark.parametrize(
    "wrong", [{"policy": "panic"}, {"spike_factor": 0.5}, {"spike_window": 0}], ids=str
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match=rf"guard\.{next(iter(wrong))}"):
        GuardConfig(**wrong)
