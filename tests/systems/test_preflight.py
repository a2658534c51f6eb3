"""Devices are checked before a job; those that fail are left out, or the job is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from zaya_jax.config import ConfigError
from zaya_jax.systems import preflight
from zaya_jax.systems.preflight import check_device, preflight_environment
from zaya_jax.systems.uptime import EventLog

SETTINGS = {"size": 16, "memory_bytes": 4_096, "least_tflops": 0.0, "least_copy_gb_s": 0.0}


def test_a_healthy_device_has_no_fault():
    assert check_device(jax.devices()[1], **SETTINGS) == []


def test_a_device_below_the_thresholds_is_named():
    strict = {**SETTINGS, "least_tflops": 1e9, "least_copy_gb_s": 1e9}
    found = check_device(jax.devices()[1], **strict)
    assert [(one.device, one.check) for one in found] == [(1, "matrix product"), (1, "copy")]
    assert "< 1e+09" in found[0].detail


def test_a_wrong_product_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    def faulty(a: Any, b: Any, precision: str) -> Any:
        return jnp.dot(a, b).at[0, 2].add(1)

    monkeypatch.setattr(preflight.jnp, "matmul", faulty)
    found = check_device(jax.devices()[0], **SETTINGS)
    assert [one.detail for one in found] == ["wrong numbers"]


def _answer(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    done = subprocess.CompletedProcess([], 0, stdout=output, stderr="no such device")
    monkeypatch.setattr(preflight.subprocess, "run", lambda *_, **__: done)


def _facts(*faulty: int) -> str:
    faults = [{"device": number, "check": "copy", "detail": ""} for number in faulty]
    return json.dumps({"devices": 4, "faults": faults})


def test_failing_devices_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    _answer(monkeypatch, f"noise\n{_facts(1)}\n")
    found = preflight_environment(tmp_path, EventLog(tmp_path))
    assert list(found.values()) == ["0,2,3"]
    event = json.loads((tmp_path / "supervisor.jsonl").read_text())
    assert (event["event"], event["faults"][0]["device"]) == ("preflight", 1)


def test_healthy_devices_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    _answer(monkeypatch, _facts())
    assert preflight_environment(tmp_path, EventLog(tmp_path)) == {}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (_facts(0, 1, 2, 3), "fail their check"),
        (_facts(-1), "fail their check"),  # the exchange among them all
        ("Traceback", "did not run: no such device"),
    ],
)
def test_a_machine_that_cannot_run_the_job_is_refused(
    output: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    _answer(monkeypatch, output)
    with pytest.raises(ConfigError, match=message):
        preflight_environment(tmp_path, EventLog(tmp_path))
