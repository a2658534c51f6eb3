"""Pretraining that notes its rows: python -m tests.systems.recorded_run FOLDER [arguments …].

FOLDER gets `<step>-<process>.json`, checksums of the rows that a process read for a step, in order.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from experiments.command_line import run_reporting_errors
from experiments.pretrain import main
from zaya_jax.data.pipeline import BatchIterator
from zaya_jax.training import loop as training_loop


def row_checksums(batch: Mapping[str, Any]) -> list[str]:
    """One for each row, over tokens and segments."""
    rows = zip(batch["tokens"], batch["segment_ids"], strict=True)
    return [hashlib.sha256(a.tobytes() + b.tobytes()).hexdigest() for a, b in rows]


def install(folder: Path) -> None:
    """Changes the loop so that it notes what it reads."""
    read, train = BatchIterator.__next__, training_loop.Loop.train
    step = [0]  # read so far in the whole run

    def train_from(self: Any, state: Any) -> Any:
        step[0] = int(state.step)
        return train(self, state)

    def next_noted(batches: BatchIterator) -> dict[str, Any]:
        batch = read(batches)
        step[0] += 1
        file = folder / f"{step[0]}-{jax.process_index()}.json"
        file.write_text(json.dumps(row_checksums(batch)))
        return batch

    training_loop.Loop.train = train_from  # type: ignore[method-assign]
    BatchIterator.__next__ = next_noted  # type: ignore[method-assign]


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    install(Path(sys.argv[1]))
    run_reporting_errors(lambda: main(sys.argv[2:]))
