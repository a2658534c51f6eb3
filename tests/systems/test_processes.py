"""Processes find each other, share a run, and lose nothing when one of them is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.conftest import QUICK_FLAGS
from tests.systems.fault_drill import CONFIG, FAULT_STEP, ROOT, STEPS
from tests.systems.recorded_run import row_checksums
from zaya_jax import load_checkpoint
from zaya_jax.checkpoint.manifest import saved_steps
from zaya_jax.config import ConfigError
from zaya_jax.data.pipeline import training_batches
from zaya_jax.parallel import hosts
from zaya_jax.parallel.hosts import Hosts, check, check_coordinator, detect, visible_device
from zaya_jax.systems.job import free_port
from zaya_jax.training.config_file import load_config, to_run_config
from zaya_jax.training.metrics_file import read_metrics

SLURM = {"SLURM_NTASKS": "4", "SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "node[1-4]"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:3",
}
KUBERNETES = {
    "JOB_COMPLETIONS": "8",
    "JOB_COMPLETION_INDEX": "3",
    "JOB_COORDINATOR": "zaya-0.zaya:8476",
}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        (SLURM, Hosts("", 4, 2)),
        (OPEN_MPI, Hosts("", 2, 1)),
        (KUBERNETES, Hosts("zaya-0.zaya:8476", 8, 3)),
        ({**SLURM, "SLURM_NTASKS": "1"}, None),
    ],
)
def test_schedulers_are_recognised(environment: dict[str, str], found: Hosts | None):
    assert detect(environment) == found


def test_a_scheduler_that_says_half_is_an_error():
    half = {name: value for name, value in SLURM.items() if name != "SLURM_PROCID"}
    with pytest.raises(ConfigError, match="SLURM_NTASKS=4 but SLURM_PROCID is not set"):
        detect(half)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Hosts("a:1", 2, -1), "give all three or none"),
        (Hosts("", 2, 0), "give all three or none"),
        (Hosts("a:1", 2, 2), "--process-id=2: must be below --processes=2"),
        (Hosts("a", 2, 0), "must be HOST:PORT"),
    ],
)
def test_half_an_explicit_description_is_refused(given: Hosts, message: str):
    with pytest.raises(ConfigError, match=message):
        check(given)


def test_a_coordinator_name_that_means_this_host_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosts.socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(ConfigError, match=r"is 127\.0\.1\.1 here"):
        check_coordinator(Hosts("node-1:99", 2, 0))
    check_coordinator(Hosts("127.0.0.1:99", 2, 0))


def test_one_process_a_device_gets_its_device_and_one_a_node_gets_all():
    each = {"SLURM_NTASKS_PER_NODE": "8", "SLURM_LOCALID": "5"}
    assert visible_device(each) == {"HIP_VISIBLE_DEVICES": "5"}
    assert visible_device({**each, "ROCR_VISIBLE_DEVICES": "5"}) == {}
    assert visible_device({**each, "SLURM_NTASKS_PER_NODE": "1"}) == {}
    with pytest.raises(ConfigError, match="both set"):
        visible_device({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"})


def _supervise(workdir: Path, launch: list[str], folder: Path, job: list[str]) -> list[Any]:
    """A supervised run of `python -m` that job; the supervisor's events.

    Args:
      workdir: of the run.
      launch: the supervisor's options that say where processes run.
      folder: for compiled programs.
      job: module and arguments.
    """
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": " ".join(QUICK_FLAGS),
    }
    command = [sys.executable, "-m", "zaya_jax.systems.supervise", "--backoff", "0.1"]
    command += [*launch, "--patience", "3", "--", sys.executable, "-m", *job]
    command += ["--workdir", str(workdir), "--config", f"{CONFIG}:planned"]
    command += ["--config.checkpoint.asynchronous=false"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1_800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in (workdir / "supervisor.jsonl").open()]


def _state(workdir: Path) -> Any:
    return load_checkpoint(workdir / "checkpoints" / str(STEPS))[1]


def _losses(workdir: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in read_metrics(workdir) if r["kind"] == "train"}


_PRIVATE_DISKS = [
    "--config.mesh.data=1",
    "--config.mesh.fsdp=2",  # each has half of the parameters
    "--config.checkpoint.local_directory=/proc/self/cwd/disk",  # one name, two folders
    "--config.checkpoint.local_interval=5",
]


@pytest.fixture(scope="module")
def undisturbed_halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two processes that split the parameters."""
    folder = tmp_path_factory.mktemp("undisturbed")
    _supervise(
        folder / "run", ["--processes=2"], folder, ["experiments.pretrain", *_PRIVATE_DISKS[:2]]
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "step", "passed_over"),
    [
        ("kill-second", 30, []),
        ("wipe-second", 20, ["local checkpoints (of step 25, 30) are not used: process 1"]),
        ("flip-second", 25, ["local step 30 is damaged on the disk of process 1"]),
    ],
)
def test_nodes_with_disks_of_their_own_go_on_from_the_newest_step_that_all_of_them_hold(
    tmp_path: Path, undisturbed_halves: Path, fault: str, step: int, passed_over: list[str]
):
    names = ("127.0.0.1", "127.0.0.2")
    for name in names:
        (tmp_path / name).mkdir()
    there = f'sh -c "cd {tmp_path}/{{node}} && PYTHONPATH={ROOT} exec {{command}}"'
    launch = [f"--nodes={','.join(names)}", f"--on-node={there}", f"--port={free_port()}"]
    workdir = tmp_path / "run"
    job = ["tests.systems.faulty_run", fault, str(FAULT_STEP), str(tmp_path / "mark")]
    _supervise(workdir, launch, undisturbed_halves, [*job, *_PRIVATE_DISKS])
    events = [record for record in read_metrics(workdir) if record["kind"] == "event"]
    resumed = [event["step"] for event in events if event["name"] == "resume"]
    assert resumed == [step]
    lines = [event["detail"] for event in events if event["name"] == "fallback"]
    assert len(lines) == len(passed_over)
    for line, start in zip(lines, passed_over, strict=True):
        assert line.startswith(start)
    jax.tree.map(np.testing.assert_array_equal, _state(undisturbed_halves / "run"), _state(workdir))
    assert _losses(undisturbed_halves / "run") == _losses(workdir)
    for index, name in enumerate(names):
        (run,) = (tmp_path / name / "disk").iterdir()
        assert [own.name for own in run.iterdir()] == [f"process-{index}"]
        assert saved_steps(run / f"process-{index}") == [50, 55]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_killing_one_process_ends_bit_equal_to_an_undisturbed_run(tmp_path: Path, processes: int):
    """Four of them as on four nodes, which are this one."""
    here, nodes = [f"--processes={processes}"], ",".join(f"127.0.0.{n}" for n in range(1, 5))
    launch = [f"--nodes={nodes}", "--on-node={command}", f"--port={free_port()}"]
    whole, killed, mark = tmp_path / "whole", tmp_path / "killed", str(tmp_path / "mark")
    job = ["tests.systems.faulty_run", "kill-second", str(FAULT_STEP), mark]
    events = _supervise(killed, here if processes == 2 else launch, tmp_path, job)
    _supervise(whole, here, tmp_path, ["experiments.pretrain"])
    failures = [event for event in events if event["event"] == "failure"]
    assert [(one["failure"], one["process"]) for one in failures] == [("killed", 1)]
    assert failures[0]["checkpoint"] == 20
    jax.tree.map(np.testing.assert_array_equal, _state(whole), _state(killed))
    assert _losses(whole) == _losses(killed)
    assert sorted(_losses(whole)) == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_a_run_on_one_two_and_four_processes_reads_every_row_of_the_stream_once(tmp_path: Path):
    workdir, rows = tmp_path / "run", tmp_path / "rows"
    legs = {1: 20, 2: 40, 4: 60}  # processes -> the step they end at
    for processes, steps in legs.items():
        job = ["tests.systems.recorded_run", str(rows), f"--config.train.steps={steps}"]
        _supervise(workdir, [f"--processes={processes}"], tmp_path, job)
    config = to_run_config(load_config(f"{CONFIG}:planned")).data
    stream = training_batches(config)
    for step in range(1, STEPS + 1):
        processes = next(count for count, last in legs.items() if step <= last)
        parts = [json.loads((rows / f"{step}-{i}.json").read_text()) for i in range(processes)]
        assert [row for part in parts for row in part] == row_checksums(next(stream))
    stream.close()
    assert len(list(rows.iterdir())) == 20 * sum(legs)
    assert sorted(_losses(workdir)) == list(range(1, STEPS + 1))
