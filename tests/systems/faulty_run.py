"""Pretraining with one fault: python -m tests.systems.faulty_run FAULT STEP MARK [arguments …].

The fault happens when the batch of STEP is read, unless the file MARK exists, which it makes; MARK
"-" means at every attempt. Faults that end in "-second" happen in process 1 alone: "slow-second" at
every step from STEP on; "wipe-second" and "flip-second" are "kill-second" after its folder `disk`
was emptied, or a bit of its newest checkpoint there was flipped. "nan" and "spike" poison that
batch: its loss is changed inside the compiled step.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.command_line import run_reporting_errors
from experiments.pretrain import main
from zaya_jax.checkpoint.manifest import saved_steps
from zaya_jax.data.pipeline import BatchIterator
from zaya_jax.training import loop as training_loop

_POISON = 77.0  # a loss weight that no data has


def _poisoned(step: Any) -> Any:
    """The step, whose loss is what the poison says."""

    def poisoned_step(config: Any, state: Any, batch: Any) -> Any:
        excess = jnp.where(batch["loss_weights"][0, 0] >= _POISON, batch["loss_weights"][0, 0], 1.0)
        factor = jnp.where(excess > _POISON, jnp.nan, excess)
        state, metrics = step(config, state, batch)
        return state, dataclasses.replace(metrics, loss=metrics.loss * factor)

    return poisoned_step


def _flip_newest(own: Path) -> None:
    """Flips a bit in the largest file of the newest checkpoint."""
    checkpoint = own / str(saved_steps(own)[-1])
    files = [path for path in (checkpoint / "variables").rglob("*") if path.is_file()]
    file = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _happen(fault: str, batch: dict[str, Any]) -> None:
    if fault == "wipe-second":
        shutil.rmtree("disk")
    elif fault == "flip-second":
        _flip_newest(next(Path("disk").glob("*/process-1")))
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault in ("kill", "kill-second", "wipe-second", "flip-second"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "hang":
        time.sleep(3_600)
    elif fault == "slow":
        time.sleep(2)
    elif fault == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    elif fault == "oom":
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes")
    elif fault == "data":
        batch["tokens"][0, 3] = 9_999
    elif fault == "nan":
        batch["loss_weights"][0, 0] = _POISON + 1
    elif fault == "spike":
        batch["loss_weights"][0, 0] = _POISON


def install(fault: str, at_step: int, mark: str) -> None:
    """Changes the loop so that the fault happens."""
    read, train = BatchIterator.__next__, training_loop.Loop.train
    done = [0]  # steps read so far in the whole run

    def train_from(self: Any, state: Any) -> Any:
        done[0] = int(state.step)
        return train(self, state)

    def next_with_fault(batches: BatchIterator) -> dict[str, Any]:
        batch = read(batches)
        done[0] += 1
        is_here = not fault.endswith("-second") or jax.process_index() == 1
        if fault == "slow-second" and is_here and done[0] >= at_step:
            time.sleep(0.2)
        elif is_here and done[0] == at_step and (mark == "-" or not Path(mark).exists()):
            if mark != "-":
                Path(mark).touch()
            _happen(fault, batch)
        return batch

    training_loop.Loop.train = train_from  # type: ignore[method-assign]
    BatchIterator.__next__ = next_with_fault  # type: ignore[method-assign]
    if fault in ("nan", "spike"):
        training_loop.train_step = _poisoned(training_loop.train_step)


if __name__ == "__main__":
    install(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    run_reporting_errors(lambda: main(sys.argv[4:]))
