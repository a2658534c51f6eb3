"""Interrupted runs end bit-equal to uninterrupted ones; bad workdirs get one clear error.

Every run is a process of its own, started by the documented command.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.checkpoint.disk import small_disk
from zaya_jax import load_checkpoint
from zaya_jax.checkpoint.manager import read_json
from zaya_jax.training.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests" / "experiments" / "tiny_config.py"
STEPS, INTERVAL = 60, 20


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All runs share compiled programs, which are compiled quickly and not well."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def _start(workdir: Path, environment: dict[str, str], *extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.pretrain", "--config", str(CONFIG)]
    return subprocess.Popen(
        [*command, "--workdir", str(workdir), *extra],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(workdir: Path, environment: dict[str, str], *extra: str) -> tuple[int, str, str]:
    process = _start(workdir, environment, *extra)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


def _interrupt(workdir: Path, environment: dict[str, str], number: int, at_step: int) -> int:
    """Sends a signal once the metrics file shows `at_step`; returns the exit status."""
    process = _start(workdir, environment)
    metrics = workdir / "metrics.jsonl"
    wanted = f'"kind":"train","step":{at_step},'
    deadline = time.monotonic() + 300
    while not (metrics.exists() and wanted in metrics.read_text().replace(" ", "")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(number)
    process.communicate(timeout=120)
    return process.returncode


def _final_state(workdir: Path) -> tuple[dict[str, Any], Any]:
    step_directory = workdir / "checkpoints" / str(STEPS)
    return load_checkpoint(step_directory)[1], read_json(step_directory, "data")


def _losses(workdir: Path) -> list[tuple[Any, ...]]:
    records = [r for r in read_metrics(workdir) if r["kind"] != "event"]
    return [(r["kind"], r["step"], r["loss"], r["accuracy"]) for r in records]


def _assert_same_run(one: Path, other: Path) -> None:
    (tree, data), (other_tree, other_data) = _final_state(one), _final_state(other)
    jax.tree.map(np.testing.assert_array_equal, tree, other_tree)
    assert data == other_data
    assert _losses(one) == _losses(other)


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """A run that nobody disturbed."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    status, output, errors = _run(workdir, environment)
    assert status == 0, errors
    assert "validation loss on synthetic" in output
    return workdir


def test_the_run_leaves_what_it_promises(whole_run: Path):
    for name in ("config.json", "metrics.jsonl", "report.html", "tensorboard", "checkpoints"):
        assert (whole_run / name).exists(), name
    steps = [step for kind, step, *_ in _losses(whole_run) if kind == "train"]
    assert steps == list(range(1, STEPS + 1))
    validated = [step for kind, step, *_ in _losses(whole_run) if kind == "validation"]
    assert validated == [0, 15, 30, 45, 60]
    kept = sorted(p.name for p in (whole_run / "checkpoints").iterdir() if p.name.isdecimal())
    assert kept == ["40", "60"]
    metadata = read_json(whole_run / "checkpoints" / "60", "metadata")
    assert metadata["config"] == json.loads((whole_run / "config.json").read_text())
    assert metadata["versions"]["jax"] == jax.__version__


def test_a_finished_run_says_so_at_once(whole_run: Path, environment: dict[str, str]):
    before = (whole_run / "metrics.jsonl").read_bytes()
    status, output, _ = _run(whole_run, environment)
    assert status == 0
    assert output.startswith("already finished at step 60")
    assert (whole_run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_the_same_command_goes_on_bit_equal(
    number: signal.Signals, whole_run: Path, tmp_path: Path, environment: dict[str, str]
):
    workdir = tmp_path / "run"
    assert _interrupt(workdir, environment, number, at_step=9) == 128 + number
    saved = [int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdecimal()]
    assert max(saved) % INTERVAL != 0, "the signal came at a step that is saved anyway"
    assert _run(workdir, environment)[0] == 0
    _assert_same_run(workdir, whole_run)


def test_kill_between_checkpoints_goes_on_bit_equal(
    whole_run: Path, tmp_path: Path, environment: dict[str, str]
):
    """Killed twice: before the first checkpoint, and after one."""
    workdir = tmp_path / "run"
    assert _interrupt(workdir, environment, signal.SIGKILL, at_step=5) == -signal.SIGKILL
    assert _interrupt(workdir, environment, signal.SIGKILL, at_step=33) == -signal.SIGKILL
    assert _run(workdir, environment)[0] == 0
    _assert_same_run(workdir, whole_run)


def test_a_corrupt_latest_checkpoint_falls_back_and_says_so(
    whole_run: Path, tmp_path: Path, environment: dict[str, str]
):
    workdir = tmp_path / "run"
    shutil.copytree(whole_run, workdir)
    largest = max(
        (p for p in (workdir / "checkpoints" / "60").rglob("*") if p.is_file()),
        key=lambda p: p.stat().st_size,
    )
    os.truncate(largest, largest.stat().st_size // 2)
    status, output, errors = _run(workdir, environment)
    assert status == 0, errors
    assert "step 60 is damaged" in output
    assert "from the checkpoint of step 40" in output
    _assert_same_run(workdir, whole_run)


def test_all_checkpoints_corrupt_is_an_error_and_not_a_new_start(
    whole_run: Path, tmp_path: Path, environment: dict[str, str]
):
    workdir = tmp_path / "run"
    shutil.copytree(whole_run, workdir)
    for step in ("40", "60"):
        (workdir / "checkpoints" / step / "variables" / "_METADATA").write_text("{}")
    before = (workdir / "metrics.jsonl").read_bytes()
    status, _, errors = _run(workdir, environment)
    assert status == 1
    assert errors.count("\n") == 1
    assert "no usable checkpoint" in errors
    assert (workdir / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--config.model.num_layers=3", "model.num_layers: 2 -> 3"),
        ("--config.data.batch_size=2", "batch_size: 4 -> 2"),
        ("--config.train.steps=50", "already at step 60"),
    ],
)
def test_a_changed_run_is_refused_with_the_difference(
    override: str, message: str, whole_run: Path, tmp_path: Path, environment: dict[str, str]
):
    workdir = tmp_path / "run"
    shutil.copytree(whole_run, workdir)
    (workdir / "finished.json").unlink()
    before = (workdir / "config.json").read_bytes()
    status, _, errors = _run(workdir, environment, override)
    assert status == 1
    assert errors.startswith("error: ")
    assert message in errors
    assert (workdir / "config.json").read_bytes() == before


def test_a_run_refused_at_its_start_leaves_nothing(tmp_path: Path, environment: dict[str, str]):
    missing = f"--config.data.source={tmp_path / 'missing.txt'}"
    status, _, errors = _run(tmp_path / "run", environment, missing)
    assert status == 1
    assert (errors[:7], errors.count("\n")) == ("error: ", 1), errors
    assert "missing.txt" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_error_and_the_run_goes_on_when_there_is_room(
    whole_run: Path, tmp_path: Path, environment: dict[str, str]
):
    """The second checkpoint finds no room; with more of it the same command finishes."""
    no_tensorboard = ["--config.log.tensorboard=false"]  # its files would fill the disk first
    with small_disk(tmp_path / "disk", 600) as disk:
        status, _, errors = _run(disk / "run", environment, *no_tensorboard)
        assert status == 1
        assert (errors[:7], errors.count("\n")) == ("error: ", 1), errors
        assert f"cannot write {disk}/run/checkpoints/" in errors
        assert "no space left on the device" in errors
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert _run(disk / "run", environment, *no_tensorboard)[0] == 0
        _assert_same_run(disk / "run", whole_run)
