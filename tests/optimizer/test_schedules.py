"""Learning rates at the places where schedules usually go wrong: their ends."""

from __future__ import annotations

import pytest

from zaya_jax.config import ConfigError
from zaya_jax.optimizer.schedules import learning_rate_schedule
from zaya_jax.optimizer.settings import OptimizerConfig, Schedule


def _config(schedule: Schedule, **changes: float) -> OptimizerConfig:
    fields = {"peak_learning_rate": 1.0, "final_learning_rate": 0.1, "warmup_steps": 10}
    return OptimizerConfig(schedule=schedule, **(fields | changes))


@pytest.mark.parametrize("schedule", [Schedule.COSINE, Schedule.CONSTANT])
def test_warmup_starts_above_zero_and_reaches_the_peak(schedule: Schedule):
    rate = learning_rate_schedule(_config(schedule), 100)
    assert float(rate(0)) == pytest.approx(1 / 11)
    assert float(rate(5)) == pytest.approx(6 / 11)
    assert float(rate(10)) == pytest.approx(1.0)


def test_cosine_is_halfway_in_the_middle_and_final_at_the_last_update():
    rate = learning_rate_schedule(_config(Schedule.COSINE, warmup_steps=0), 101)
    assert float(rate(0)) == pytest.approx(1.0)
    assert float(rate(50)) == pytest.approx(0.55)
    assert float(rate(100)) == pytest.approx(0.1)


def test_wsd_holds_then_falls_linearly_to_final_at_the_last_update():
    rate = learning_rate_schedule(_config(Schedule.WSD, decay_steps=20), 100)
    assert float(rate(79)) == pytest.approx(1.0)
    assert float(rate(89)) == pytest.approx(0.55)
    assert float(rate(99)) == pytest.approx(0.1)


def test_constant_stays():
    rate = learning_rate_schedule(_config(Schedule.CONSTANT), 100)
    assert {float(rate(step)) for step in (10, 50, 99)} == {1.0}


def test_warmup_longer_than_the_run_is_refused():
    with pytest.raises(ConfigError, match=r"warmup_steps=10.*train\.steps=5"):
        learning_rate_schedule(_config(Schedule.COSINE), 5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedule", "linear"),
        ("beta1", 1.0),
        ("weight_decay", -0.1),
        ("epsilon", 0.0),
        ("decay_steps", 5),
        ("kind", "sgd"),
        ("muon_momentum", 1.0),
        ("muon_steps", 0),
        ("muon_dtype", "float16"),
        ("balancing_rule", "adam"),
        ("balancing_final_learning_rate", -1.0),
    ],
)
def test_bad_settings_are_named(field: str, value: object):
    with pytest.raises(ConfigError, match=rf"optimizer\.{field}="):
        OptimizerConfig(**{field: value})
