"""A reshaped checkpoint holds the same bits, reads onto any mesh, and refuses damage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from zaya_jax.checkpoint.manager import CheckpointError, CheckpointManager, read_json
from zaya_jax.checkpoint.manifest import find_damage
from zaya_jax.checkpoint.reshape import main, reshape
from zaya_jax.checkpoint.settings import CheckpointConfig

TREE = {"table": np.arange(48.0, dtype=np.float32).reshape(6, 8), "scale": np.float32(0.1)}
TRAINING = {"step": np.int32(7)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path / "run" / "checkpoints", CheckpointConfig()) as manager:
        manager.save(
            7, variables=TREE, training=TRAINING, data={"at": 3}, metadata={"config": {"a": 1}}
        )
        manager.wait()
    return tmp_path / "run"


def _restored(folder: Path) -> Any:
    with CheckpointManager(folder.parent, CheckpointConfig()) as manager:
        found = manager.find_latest()
        assert found is not None
        return manager.restore(found.step, TREE, TRAINING)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_copy_holds_the_same_bits_and_a_run_goes_on_from_it(
    run: Path, tmp_path: Path, shards: int
):
    target = tmp_path / "moved" / "checkpoints" / "7"
    reshape(run, target, shards=shards)
    assert find_damage(target) is None
    found = _restored(target)
    jax.tree.map(np.testing.assert_array_equal, found.variables, TREE)
    assert int(found.training["step"]) == 7
    assert found.data == {"at": 3}
    assert read_json(target, "metadata") == {"config": {"a": 1}}


def test_variables_alone_leave_the_rest_behind(run: Path, tmp_path: Path):
    reshape(run / "checkpoints" / "7", tmp_path / "weights", variables_only=True)
    assert not (tmp_path / "weights" / "training").exists()
    assert not (tmp_path / "weights" / "data").exists()


def test_a_damaged_source_is_refused_and_nothing_is_left(run: Path, tmp_path: Path):
    largest = max((run / "checkpoints" / "7").rglob("*"), key=lambda path: path.stat().st_size)
    largest = largest if largest.is_file() else next(p for p in largest.rglob("*") if p.is_file())
    os.truncate(largest, largest.stat().st_size // 2)
    with pytest.raises(CheckpointError, match="is damaged"):
        reshape(run / "checkpoints" / "7", tmp_path / "moved")
    assert not list(tmp_path.glob("moved*"))


def test_an_existing_target_is_not_touched(run: Path, tmp_path: Path):
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "mine").write_text("x")
    with pytest.raises(CheckpointError, match="exists already"):
        main([str(run), str(tmp_path / "moved")])


def test_no_parts_are_refused(run: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match="--shards=0"):
        main([str(run), str(tmp_path / "moved"), "--shards", "0"])
