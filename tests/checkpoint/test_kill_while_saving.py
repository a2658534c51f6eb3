"""A writer killed at any moment loses nothing that was committed, and the next one goes on.

After every kill a file of the newest checkpoint is truncated, then one has a bit flipped: both are
found, and the checkpoint before is taken.
"""

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

from zaya_jax.checkpoint.manager import CheckpointManager, saved_steps
from zaya_jax.checkpoint.manifest import is_finished
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


def _check_damage_is_found(directory: Path, moment: random.Random) -> bool:
    """Truncates a file of the newest checkpoint, then flips a bit in one; each is put back.

    False: there are not two finished checkpoints yet.
    """
    finished = [step for step in saved_steps(directory) if is_finished(directory / str(step))]
    if len(finished) < 2:
        return False
    files = [path for path in (directory / str(finished[-1])).rglob("*") if path.is_file()]
    for cut in (True, False):
        victim = moment.choice([path for path in sorted(files) if path.stat().st_size])
        content = victim.read_bytes()
        at = moment.randrange(len(content))
        flipped = bytes([content[at] ^ (1 << moment.randrange(8))])
        victim.write_bytes(content[:at] + (b"" if cut else flipped + content[at + 1 :]))
        with CheckpointManager(directory, CheckpointConfig()) as manager:
            found = manager.find_latest()
        assert found is not None
        assert found.step == finished[-2], f"{victim} {'cut' if cut else 'flipped'} at byte {at}"
        victim.write_bytes(content)
    return True


@pytest.mark.slow
def test_thirty_kills_at_random_moments(tmp_path: Path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zaya_jax.checkpoint.manager"])
    moment = random.Random(0)
    directory, acknowledged = tmp_path / "checkpoints", tmp_path / "acknowledged"
    passed_over, damaged, last = 0, 0, 0
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
        damaged += _check_damage_is_found(directory, moment)
    assert damaged >= KILLS - 1  # the first kill may come before there are two
    assert last >= KILLS
    assert passed_over > 0, "no kill came while a checkpoint was half-written"
