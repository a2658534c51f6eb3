"""The numbers of a record, and the clock that splits a run's time."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.training.clock import Clock, Interval
from zaya_jax.training.metrics import load_metrics, peak_flops, train_record
from zaya_jax.training.step import StepMetrics


def test_load_metrics_of_even_uneven_and_skipped_layers():
    metrics = load_metrics(
        np.asarray([[5, 5, 5, 5, 0], [20, 0, 0, 0, 20], [0, 0, 0, 0, 9]], np.float32)
    )
    np.testing.assert_allclose(metrics["load_entropy"], [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(metrics["skip_share"], [0, 0.5, 1])
    np.testing.assert_allclose(metrics["min_expert_load"], [0.25, 0, 0])
    np.testing.assert_allclose(metrics["max_expert_load"], [0.25, 1, 0])


def test_load_entropy_of_two_to_one():
    entropy = load_metrics(np.asarray([[2, 1, 0]], np.float32))["load_entropy"][0]
    assert entropy == pytest.approx(-(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3)) / np.log(2))


def test_a_single_expert_is_always_even():
    assert load_metrics(np.asarray([[7, 3]], np.float32))["load_entropy"] == [1.0]


def test_clock_books_every_second_once():
    now = iter([0.0, 0.0, 3.0, 3.0, 4.0, 10.0, 12.0, 14.0, 15.0]).__next__
    clock = Clock(now)
    with clock.measure("compile"):
        pass
    with clock.measure("data_wait"):
        pass
    assert clock.end_of_step() == Interval(step=6.0, data_wait=1.0, compile=3.0)
    with clock.measure("checkpoint"):
        pass
    assert clock.end_of_step() == Interval(step=3.0, checkpoint=2.0)
    assert clock.goodput == pytest.approx(9 / 15)


def test_record_rates_count_waiting_for_data_but_not_checkpoints():
    metrics = StepMetrics(
        loss=jnp.float32(2.0),
        accuracy=jnp.float32(0.5),
        tokens=jnp.float32(300.0),
        grad_norm=jnp.float32(1.0),
        param_norm=jnp.float32(9.0),
        learning_rate=jnp.float32(0.1),
        class_counts=jnp.ones((2, 5)),
        residual_rms=jnp.ones((3,)),
    )
    interval = Interval(step=2.0, data_wait=1.0, checkpoint=50.0)
    record = train_record(7, metrics, interval, flops_per_token=10.0, goodput=0.5)
    assert record["tokens_per_second"] == pytest.approx(100.0)
    assert record["model_flops_per_second"] == pytest.approx(1000.0)
    assert record["mfu"] is None  # nobody states the peak of this CPU
    assert (record["step"], record["tokens"], len(record["residual_rms"])) == (7, 300, 3)


def test_peaks_are_found_by_the_names_devices_report():
    assert peak_flops("NVIDIA H200") == 989.4e12
    assert peak_flops("AMD Instinct MI300X") == 1307.4e12
    assert peak_flops("cpu") is None
