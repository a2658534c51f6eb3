"""Exchanges are timed by the usual conventions, and a wrong result does not pass."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from zaya_jax.config import ConfigError
from zaya_jax.systems import collectives
from zaya_jax.systems.collectives import Measurement, main, measure
from zaya_jax.systems.exchanges import AXIS, EXCHANGES


@pytest.mark.parametrize("name", EXCHANGES)
def test_every_result_is_right_on_four_devices(name: str):
    found = measure(EXCHANGES[name], jax.devices()[:4], 1_024, repeats=1)
    assert found.wrong_elements == 0
    assert found.bytes == 1_024
    assert found.seconds > 0


def _drops_the_last_rank(x: jax.Array, devices: int) -> jax.Array:
    is_last = jax.lax.axis_index(AXIS) == devices - 1
    return jax.lax.psum(jnp.where(is_last, 0.0, x), AXIS)


def _flips_one_element(x: jax.Array, devices: int) -> jax.Array:
    return jax.lax.psum(x, AXIS).at[3].add(1.0)


@pytest.mark.parametrize(
    ("fault", "wrong"), [(_drops_the_last_rank, 2 * 128), (_flips_one_element, 2)]
)
def test_a_faulty_exchange_is_caught(
    fault: collectives.Callable, wrong: int, monkeypatch: pytest.MonkeyPatch, capsys
):
    faulty = dataclasses.replace(EXCHANGES["all-reduce"], run=fault)
    monkeypatch.setitem(collectives.EXCHANGES, "all-reduce", faulty)
    arguments = ["--operations", "all-reduce", "--groups", "2", "--least", "512", "--most", "512"]
    assert main([*arguments, "--repeats", "1"]) == 1
    output = capsys.readouterr()
    assert f"{wrong:,} WRONG" in output.out
    assert "do not train on these devices" in output.err


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all-reduce", 2 * 7 / 8),
        ("reduce-scatter", 7 / 8),
        ("all-gather", 7 / 8),
        ("all-to-all", 7 / 8),
        ("broadcast", 1),
        ("point-to-point", 1),
    ],
)
def test_bus_bandwidth_follows_the_usual_conventions(operation: str, factor: float):
    found = Measurement(operation, 8, 10**9, 0.5, 0)
    assert found.algorithm_gb_s == 2
    assert found.bus_gb_s == pytest.approx(2 * factor)


def test_json_and_plots_are_written(tmp_path: Path):
    arguments = ["--operations", "all-gather", "--groups", "2,8", "--least", "1K", "--most", "4K"]
    assert main([*arguments, "--repeats", "1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "collectives.json").read_text())["measurements"]
    assert [(one["devices"], one["bytes"]) for one in found] == [
        (2, 1_024),
        (2, 4_096),
        (8, 1_024),
        (8, 4_096),
    ]
    picture = (tmp_path / "all-gather.svg").read_text()
    assert "<svg" in picture


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--groups", "16"], "--groups=16: an exchange takes from 2 to 8"),
        (["--groups", "two"], "--groups='two'"),
        (["--operations", "gossip"], "'gossip' is none of: all-reduce"),
        (["--most", "1X"], "--most='1X' is no size"),
    ],
)
def test_bad_input_is_one_error_that_names_it(arguments: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        main(arguments)
