"""Heartbeats tell a job that stands still, a slow step, and the process that holds others up."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import pytest

from zaya_jax.systems.uptime import EventLog
from zaya_jax.systems.watch import Watch, stragglers
from zaya_jax.training.heartbeat import Heartbeat, read_heartbeats
from zaya_jax.training.probe import Probe

SETTINGS = argparse.Namespace(
    hang_seconds=0.2, start_seconds=9.0, slow_factor=3.0, straggler_factor=1.5
)


def _beat(step: int, seconds: float = 1.0) -> dict[int, dict[str, float]]:
    slowest = {"slowest_seconds": seconds, "slowest_step": step}
    return {0: {"step": step, "step_seconds": seconds, "data_wait_seconds": 0.0, **slowest}}


def test_a_job_without_new_steps_stands_still(tmp_path: Path):
    watch = Watch(SETTINGS, EventLog(tmp_path))
    assert not watch.stands_still(_beat(1))
    time.sleep(0.3)
    assert watch.stands_still(_beat(1))
    assert not watch.stands_still(_beat(2))


def test_a_slow_step_is_recorded_against_the_usual_one(tmp_path: Path):
    watch = Watch(SETTINGS, EventLog(tmp_path))
    for step in range(10):
        watch.stands_still(_beat(step))
    watch.stands_still(_beat(10, seconds=2.9))
    assert not (tmp_path / "supervisor.jsonl").exists()
    watch.stands_still(_beat(11, seconds=3.1))
    event = json.loads((tmp_path / "supervisor.jsonl").read_text())
    assert (event["event"], event["step"], event["usual"]) == ("slow", 11, 1.0)


def _rank(*, data: float = 0.01, device: float = 1.0, step: float = 0.5) -> dict[str, float]:
    own = {"usual_data_wait_seconds": data, "probe_seconds": device}
    slowest = {"slowest_seconds": step, "slowest_step": 1}
    return {"step": 1, "step_seconds": step, "data_wait_seconds": data, **slowest, **own}


@pytest.mark.parametrize(
    ("beats", "named"),
    [
        ({0: _rank(), 1: _rank(), 2: _rank()}, []),
        ({0: _rank(), 1: _rank(), 2: _rank(device=1.6)}, [(2, "device")]),
        ({0: _rank(), 1: _rank(data=0.4), 2: _rank()}, [(1, "data")]),
        ({0: _rank(), 1: _rank(data=0.05)}, []),  # much longer, but nothing beside the step
        ({0: _rank(device=0.0), 1: _rank(device=9.0)}, []),  # not all are measured
        ({0: _rank(data=9.0)}, []),  # alone
    ],
)
def test_the_process_that_holds_up_the_others_is_named(
    beats: dict[int, dict[str, float]], named: list[tuple[int, str]]
):
    assert [(one, what) for one, what, _, _ in stragglers(beats, 1.5)] == named


def test_a_straggler_is_recorded_once_with_its_node(tmp_path: Path):
    watch = Watch(SETTINGS, EventLog(tmp_path), ["left", "right"])
    for _ in range(3):
        watch.stands_still({0: _rank(), 1: _rank(device=2.0)})
    event = json.loads((tmp_path / "supervisor.jsonl").read_text())
    assert (event["event"], event["process"], event["node"]) == ("straggler", 1, "right")
    assert (event["what"], event["seconds"], event["others"]) == ("device", 2.0, 1.0)


def test_a_beat_holds_what_its_process_does_by_itself(tmp_path: Path):
    heart = Heartbeat(tmp_path, 0)
    for wait in (0.1, 9.0, 0.2):
        heart.beat(1, 1.0, wait)
    heart.probe_seconds = 0.5
    heart.beat(2, 1.0, 0.2)
    beat = read_heartbeats(tmp_path)[0]
    assert beat["usual_data_wait_seconds"] == pytest.approx(0.2)
    assert beat["probe_seconds"] == 0.5


def test_a_probe_times_every_device_of_the_process(monkeypatch: pytest.MonkeyPatch):
    devices = jax.local_devices()[:2]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert Probe().seconds() > 0
