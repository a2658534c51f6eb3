"""A writer killed at any moment loses nothing that was committed, and the next one goes on."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zaya_jax.checkpoint.manager import CheckpointManager
from zaya_jax.checkpoint.settings import CheckpointConfig

KILLS = 30
_SIZE = 20_000


def _tree(step: int) -> dict[str, Any]:
    return {"weight": np.full(_SIZE, step, np.float32), "table": np.arange(_SIZE) * step}


def _write(directory: str, first: int, acknowledged: str) -> None:
    """Saves one checkpoint after another; notes each when it is durable. Ends by being killed."""
    with CheckpointManager(Path(directory), CheckpointConfig()) as manager:
        manager.set_aside_after(first - 1)
        for step in range(first, first + 10_000):
            tree = _tree(step)
            manager.save(
                step,
                variables={"params": tree},
                training={"step": np.int32(step)},
                data={"at": step},
                metadata={},
            )
            manager.wait()
            Path(acknowledged).write_text(str(step))


@pytest.mark.slow
def test_thirty_kills_at_random_moments(tmp_path: Path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zaya_jax.checkpoint.manager"])
    moment = random.Random(0)
    directory, acknowledged = tmp_path / "checkpoints", tmp_path / "acknowledged"
    passed_over, last = 0, 0
    for _ in range(KILLS):
        acknowledged.write_text(str(last))
        writer = context.Process(target=_write, args=(str(directory), last + 1, str(acknowledged)))
        writer.start()
        deadline = time.monotonic() + 300
        while (acknowledged.read_text() or str(last)) == str(last):  # until it saves
            assert writer.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(moment.uniform(0.0, 0.5))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        committed = int(acknowledged.read_text() or last)
        with CheckpointManager(directory, CheckpointConfig()) as manager:
            found = manager.find_latest()
            assert found is not None
            assert found.step >= committed
            passed_over += len(found.passed_over)
            expected = _tree(found.step)
            restored = manager.restore(
                found.step, {"params": expected}, {"step": np.int32(found.step)}
            )
        for name, array in expected.items():
            np.testing.assert_array_equal(np.asarray(restored.variables["params"][name]), array)
        assert restored.data == {"at": found.step}
        last = found.step
    assert last >= KILLS
    assert passed_over > 0, "no kill came while a checkpoint was half-written"
