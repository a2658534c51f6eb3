"""Processes with disks of their own: other meshes, other numbers of them, kills at any moment."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.systems.fault_drill import ROOT
from zaya_jax.checkpoint.manifest import is_finished
from zaya_jax.systems.job import free_port

KILLS = 6
_ENDLESS = 100_000


def _start(run: Path, count: int, mesh: str, last: int) -> list[subprocess.Popen[bytes]]:
    """Processes on nodes that are folders beside the run."""
    port = free_port()
    processes = []
    for index in range(count):
        node = _node(run, index)
        node.mkdir(exist_ok=True)
        words = [str(index), str(count), str(port), str(run), mesh, str(last)]
        with (node / "log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.checkpoint.local_writer", *words],
                    cwd=node,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return processes


def _node(run: Path, index: int) -> Path:
    return run.parent / f"node{index}"


def _finish(run: Path, count: int, mesh: str, last: int) -> Any:
    """Runs to a step; where it began, and why not later, in which all processes agree."""
    for index, process in enumerate(_start(run, count, mesh, last)):
        log = _node(run, index) / "log"
        assert process.wait(600) == 0, log.read_text()
    found = [json.loads((_node(run, index) / "found.json").read_text()) for index in range(count)]
    assert all(one == found[0] for one in found)
    return found[0]


def _half_written(run: Path) -> list[Path]:
    """Folders of checkpoints, under their names or temporary ones, that are not whole."""
    found = [path for index in range(2) for path in _node(run, index).glob("disk/*/process-*/*")]
    return [path for path in found if not is_finished(path)]


def _acknowledged(run: Path) -> int:
    files = [_node(run, index) / "acknowledged" for index in range(2)]
    return max(int(file.read_text() or 0) if file.exists() else 0 for file in files)


@pytest.mark.slow
def test_other_meshes_and_numbers_of_processes_use_a_local_step_when_all_find_what_they_need(
    tmp_path: Path,
):
    run = tmp_path / "run"
    assert _finish(run, 2, "2,2", 15) == [0, []]
    assert _finish(run, 2, "1,4", 23) == [14, []]  # a quarter of the half that each holds whole
    start, lines = _finish(run, 2, "2,2", 25)  # a process has two quarters, and needs all
    assert (start, len(lines)) == (20, 1)
    assert lines[0].startswith("local step 22 lacks parts of ['variables']['split']")
    assert _finish(run, 1, "2,1", 27) == [24, []]
    assert _finish(run, 2, "2,2", 27) == [24, ["local step 26 is not on the disk of process 1"]]


@pytest.mark.slow
def test_nothing_that_was_half_written_counts_and_nothing_committed_is_lost(tmp_path: Path):
    run, moment, half_written = tmp_path / "run", random.Random(0), 0
    for _ in range(KILLS):
        before = _acknowledged(run)
        processes = _start(run, 2, "1,4", _ENDLESS)
        deadline = time.monotonic() + 600
        while _acknowledged(run) == before:  # until it saves
            assert all(process.poll() is None for process in processes)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(moment.uniform(0.0, 2.0))
        for process in processes:
            process.kill()
            process.wait()
        committed = _acknowledged(run)
        half_written += len(_half_written(run))
        start, _ = _finish(run, 2, "1,4", 0)  # only looks
        assert start >= committed
    assert half_written > 0, "no kill came while a checkpoint was half-written"
