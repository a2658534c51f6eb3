"""Failures are told apart and answered; a supervised run survives each fault of the drill."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.systems.fault_drill import CASES, INTERVAL, ROOT, STEPS, Case, run_case, table
from zaya_jax import load_checkpoint
from zaya_jax.config import ConfigError
from zaya_jax.systems.failures import RESPONSES, Failure, classify
from zaya_jax.systems.job import Job
from zaya_jax.systems.supervise import SUPERVISOR_LOCK, Supervisor, main
from zaya_jax.systems.uptime import EventLog, last_checkpoint, uptime
from zaya_jax.training.heartbeat import Heartbeat, read_heartbeats
from zaya_jax.training.workdir import claimed


@pytest.mark.parametrize(
    ("status", "output", "failure"),
    [
        (1, "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", Failure.OUT_OF_MEMORY),
        (1, "error: step 7: loss is nan; training stopped", Failure.NON_FINITE_LOSS),
        (1, "error: step 9: the validation loss on web is inf", Failure.NON_FINITE_LOSS),
        (1, "error: cannot write x/checkpoints/4: no space left on the device", Failure.DISK_FULL),
        (1, "error: tokens[0, 3] = 9999 is not a token id of the model", Failure.DATA),
        (1, "error: --workdir='x' is in use by process 3 (--config.data.batch=4)", Failure.CONFIG),
        (1, "error: mesh: fsdp=3 does not fit 8 devices", Failure.CONFIG),
        (1, "error: no usable checkpoint in x", Failure.CHECKPOINT),
        (1, "Gloo all-reduce failed: Connection reset by peer", Failure.COLLECTIVE),
        (1, "NCCL operation ncclAllReduce failed: unhandled system error", Failure.COLLECTIVE),
        (143, "state saved", Failure.PREEMPTION),
        (-15, "", Failure.PREEMPTION),
        (-9, "[Gloo] Rank 1 is connected to 1 peer ranks", Failure.KILLED),
        (-11, "[Gloo] Rank 1 is connected to 1 peer ranks", Failure.UNKNOWN),
        (-11, "Fatal Python error: Segmentation fault", Failure.UNKNOWN),
    ],
)
def test_failures_are_told_apart(status: int, output: str, failure: Failure):
    assert classify(status, output, hung=False) is failure
    assert classify(status, output, hung=True) is Failure.HANG


def test_every_class_has_an_answer():
    assert set(RESPONSES) == set(Failure)
    assert not RESPONSES[Failure.DATA].restarts
    assert RESPONSES[Failure.COLLECTIVE].restarts


def _settings(**changes: float) -> argparse.Namespace:
    settings = {"hang_seconds": 0.2, "start_seconds": 9.0, "slow_factor": 3.0, "patience": 5.0}
    settings |= {"backoff": 0.01, "most_fruitless": 2, "processes": 1, "straggler_factor": 1.5}
    return argparse.Namespace(**{**settings, **changes})


def test_heartbeats_are_read_back(tmp_path: Path):
    Heartbeat(tmp_path, 3).beat(7, 0.5, 0.25)
    (tmp_path / "heartbeats" / "4.json").write_text("{")
    assert read_heartbeats(tmp_path)[3]["step"] == 7
    assert list(read_heartbeats(tmp_path)) == [3]


def test_a_beat_tells_the_slowest_of_the_recent_steps(tmp_path: Path):
    heart = Heartbeat(tmp_path, 0)
    for step in range(1, 6):
        heart.beat(step, 2.0 if step == 3 else 0.1, 0.0)
    beat = read_heartbeats(tmp_path)[0]
    assert (beat["slowest_step"], beat["slowest_seconds"]) == (3, 2.0)


def _script(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def _supervise(tmp_path: Path, command: list[str]) -> int:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return Supervisor(_settings(), command, tmp_path, {}, EventLog(tmp_path)).run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_crash_loop_stops_with_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert _supervise(tmp_path, _script("import os", "os.kill(os.getpid(), 11)")) == 1
    output = capsys.readouterr()
    assert "failures {'unknown': 2}" in output.err
    assert "2 failures, goodput 0.0%" in output.out
    events = [json.loads(x)["event"] for x in (tmp_path / "supervisor.jsonl").open()]
    expected = ["start", "failure", "restart", "start", "failure", "gave up", "end"]
    assert events == expected


def test_a_job_that_somebody_else_started_is_left_alone(tmp_path: Path):
    with claimed(tmp_path):
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(ConfigError, match=rf"is in use by process {os.getpid()} on"):
            main(["--workdir", str(tmp_path), "--processes", "2", "--", "true"])
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    with claimed(tmp_path, SUPERVISOR_LOCK), pytest.raises(ConfigError, match="is in use by"):
        main(["--workdir", str(tmp_path), "--", "true"])


def test_what_no_restart_mends_stops_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert _supervise(tmp_path, _script("exit('error: tokens[0, 1] = 9 is not a token id')")) == 1
    assert "stopped by data error" in capsys.readouterr().err


def test_the_first_killed_process_is_named_and_the_others_are_ended(tmp_path: Path):
    command = _script(
        "import os, sys, time",
        "last = '--process-id=1' in sys.argv",
        "os.kill(os.getpid(), 9) if last else time.sleep(60)",
    )
    commands = [[*command, flag] for flag in ("--process-id=0", "--process-id=1")]
    job = Job(commands, logs=tmp_path, attempt=1, environment={})
    deadline = time.monotonic() + 60
    while (ended := job.ended()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.kill()
    assert (ended.process, ended.status) == (1, -9)


def test_figures_of_a_run_without_metrics(tmp_path: Path):
    figures = uptime(tmp_path, time.time() - 100, failures=4)
    assert figures.goodput == 0
    assert figures.mean_seconds_between_failures == pytest.approx(25, rel=0.01)
    assert last_checkpoint(tmp_path) == -1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backoff", "1"], "give the job after --"),
        (["--"], "nothing stands after --"),
        (["--processes", "0", "--", "true"], "--processes=0"),
        (["--", "true"], "names no --workdir"),
    ],
)
def test_bad_input_is_one_error_that_names_it(arguments: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        main(arguments)


def test_the_guide_holds_the_table_of_the_drill():
    guide = (ROOT / "docs" / "fault_tolerance.md").read_text()
    assert table() in guide


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    workdir = tmp_path_factory.mktemp("whole") / "run"
    assert run_case(Case("none", "none", (), "done", ""), workdir, environment).status == 0
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_drill(
    case: Case, request: pytest.FixtureRequest, tmp_path: Path, environment: dict[str, str]
):
    workdir = tmp_path / "run"
    result = run_case(case, workdir, environment)
    failures = [one["failure"] for one in result.supervisor if one["event"] == "failure"]
    assert tuple(failures) == case.classes, result.output
    end = result.supervisor[-1]
    assert (end["event"], end["how"]) == ("end", case.ends), result.output
    assert end["failures"] == len(case.classes)
    recorded = {*result.run, *(one["event"] for one in result.supervisor)}
    assert set(case.events) <= recorded
    named = [one for one in result.supervisor if one["event"] == "straggler"]
    assert [(one["process"], one["what"]) for one in named] == [(1, "data")] * len(named)
    if case.fault == "hang":
        logs = "".join(path.read_text() for path in (workdir / "logs").iterdir())
        assert "next_with_fault" in logs, "the stack of the hung thread"
    if case.ends == "done":
        assert last_checkpoint(workdir) == STEPS
    else:
        assert last_checkpoint(workdir) == INTERVAL
    variables = load_checkpoint(workdir / "checkpoints" / str(last_checkpoint(workdir)))[1]
    if case.same:
        undisturbed = request.getfixturevalue("undisturbed")
        whole = load_checkpoint(undisturbed / "checkpoints" / str(STEPS))[1]
        jax.tree.map(np.testing.assert_array_equal, variables, whole)
