"""The checkpoint manager on small trees: what it keeps, trusts, refuses and survives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.disk import small_disk
from zaya_jax.checkpoint.manager import (
    CheckpointError,
    CheckpointManager,
    saved_steps,
    steps_to_delete,
)
from zaya_jax.checkpoint.manifest import MANIFEST
from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.config import ConfigError

KEEP_ALL = CheckpointConfig(keep_last=100)


def _variables(value: float) -> dict[str, Any]:
    return {"params": {"w": jnp.full((3, 4), value)}, "balancing": {"biases": jnp.ones((2, 3))}}


def _save(manager: CheckpointManager, *steps: int) -> None:
    for step in steps:
        manager.save(
            step,
            variables=_variables(float(step)),
            training={"step": jnp.asarray(step), "rng": jnp.zeros((2,), jnp.uint32)},
            data={"position": step},
            metadata={"config": {"name": "tiny"}},
        )
    manager.wait()


def _written(directory: Path, *steps: int) -> None:
    with CheckpointManager(directory, KEEP_ALL) as manager:
        _save(manager, *steps)


def _largest_file(directory: Path) -> Path:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST)
    return max(files, key=lambda path: path.stat().st_size)


def test_everything_comes_back(tmp_path: Path):
    _written(tmp_path, 3)
    with CheckpointManager(tmp_path, KEEP_ALL) as manager:
        found = manager.find_latest()
        assert found is not None
        assert found.step == 3
        template = jax.eval_shape(lambda: _variables(0.0))
        training = {"step": jnp.asarray(0), "rng": jnp.zeros((2,), jnp.uint32)}
        restored = manager.restore(3, template, training)
        jax.tree.map(np.testing.assert_array_equal, restored.variables, _variables(3.0))
        assert int(restored.training["step"]) == 3
        assert restored.data == {"position": 3}
        assert manager.metadata(3) == {"config": {"name": "tiny"}}


def test_background_saving_is_not_disturbed_by_donated_steps(tmp_path: Path):
    """The arrays being written are overwritten by the next steps: the copy must be older."""
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = {"params": jnp.zeros((500, 1000)), "balancing": {"biases": jnp.zeros((2, 3))}}
    with CheckpointManager(tmp_path, KEEP_ALL) as manager:
        manager.save(1, variables=state, training={"step": jnp.asarray(1)}, data={}, metadata={})
        for _ in range(5):
            state = step(state)
        manager.wait()
        template = jax.eval_shape(lambda: state)
        restored = manager.restore(1, template, {"step": jnp.asarray(0)})
        assert not np.asarray(restored.variables["params"]).any()


def test_keeps_the_last_and_every_nth(tmp_path: Path):
    config = CheckpointConfig(keep_last=2, keep_every=4)
    with CheckpointManager(tmp_path, config) as manager:
        _save(manager, 2, 4, 6, 8, 10, 12)
    assert saved_steps(tmp_path) == [4, 8, 10, 12]


def test_retention_rule():
    assert steps_to_delete([1, 2, 3], CheckpointConfig(keep_last=1)) == [1, 2]
    assert steps_to_delete([1], CheckpointConfig(keep_last=2)) == []
    assert steps_to_delete([5, 10, 15], CheckpointConfig(keep_last=1, keep_every=10)) == [5]


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "metadata"])
def test_damage_of_any_kind_is_found_and_the_one_before_is_taken(tmp_path: Path, damage: str):
    _written(tmp_path, 1, 2)
    victim = _largest_file(tmp_path / "2")
    content = victim.read_bytes()
    if damage == "truncate":
        os.truncate(victim, len(content) // 2)
    elif damage == "flip":  # same size, one bit
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "delete":
        victim.unlink()
    else:
        (tmp_path / "2" / MANIFEST).write_text("{")
    with CheckpointManager(tmp_path, KEEP_ALL) as manager:
        found = manager.find_latest()
        assert found is not None
        assert found.step == 1
        assert "step 2 is damaged" in found.passed_over[0]
        manager.set_aside_after(1)
        _save(manager, 2)  # the run reaches that step again
        again = manager.find_latest()
        assert again is not None
        assert again.step == 2


def test_a_cut_or_a_flipped_bit_in_any_file_is_found(tmp_path: Path):
    _written(tmp_path, 1, 2)
    files = [path for path in (tmp_path / "2").rglob("*") if path.is_file() and path.stat().st_size]
    with CheckpointManager(tmp_path, KEEP_ALL) as manager:
        for number, file in enumerate(sorted(files)):
            content = file.read_bytes()
            at, bit = 37 * number % len(content), 1 << number % 8
            for damaged in (
                content[:at],
                content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :],
            ):
                file.write_bytes(damaged)
                found = manager.find_latest()
                assert found is not None
                assert found.step == 1, file
            file.write_bytes(content)
        intact = manager.find_latest()
        assert intact is not None
        assert intact.step == 2


def test_an_unfinished_checkpoint_is_not_trusted(tmp_path: Path):
    _written(tmp_path, 1, 2)
    (tmp_path / "2" / MANIFEST).unlink()
    with CheckpointManager(tmp_path, KEEP_ALL) as manager:
        found = manager.find_latest()
        assert found is not None
        assert found.step == 1
        assert "not completely written" in found.passed_over[0]


def test_all_damaged_is_an_error_that_names_each(tmp_path: Path):
    _written(tmp_path, 1, 2)
    for step in ("1", "2"):
        os.truncate(_largest_file(tmp_path / step), 1)
    with (
        CheckpointManager(tmp_path, KEEP_ALL) as manager,
        pytest.raises(CheckpointError, match=r"step 2 is damaged.*step 1 is damaged"),
    ):
        manager.find_latest()


def test_no_checkpoint_is_a_new_run(tmp_path: Path):
    with CheckpointManager(tmp_path / "new", KEEP_ALL) as manager:
        assert manager.find_latest() is None


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path):
    _written(tmp_path, 1)
    with CheckpointManager(tmp_path, KEEP_ALL) as manager:
        template = {"params": {"v": jnp.zeros((3, 4))}, "balancing": {"biases": jnp.ones((2, 3))}}
        with pytest.raises(CheckpointError, match="cannot read"):
            manager.restore(1, template, {"step": jnp.asarray(0)})


def test_a_workdir_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot make .*/file/checkpoints: .*file is not a"):
        CheckpointManager(tmp_path / "file" / "checkpoints", KEEP_ALL)


def test_a_workdir_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(CheckpointError, match=r"/new/checkpoints: .* is not writable; choose"):
        CheckpointManager(tmp_path / "new" / "checkpoints", KEEP_ALL)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_made_before_the_first_save(tmp_path: Path):
    with CheckpointManager(tmp_path / "run" / "checkpoints", KEEP_ALL):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["interval", "keep_last", "keep_every"])
def test_bad_settings_are_named(field: str):
    with pytest.raises(ConfigError, match=rf"checkpoint\.{field}=-1"):
        CheckpointConfig(**{field: -1})


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_full_disk_is_one_clear_error_and_the_checkpoint_before_stays(
    tmp_path: Path, asynchronous: bool
):
    config = CheckpointConfig(keep_last=1, asynchronous=asynchronous)
    noise = {"w": jax.random.normal(jax.random.key(0), (1000, 1000))}
    with small_disk(tmp_path / "disk", 3 * 1024) as disk:
        manager = CheckpointManager(disk, config)
        _save(manager, 1)

        def save_too_much() -> None:
            manager.save(
                2, variables=noise, training={"step": jnp.asarray(2)}, data={}, metadata={}
            )
            manager.wait()

        with pytest.raises(CheckpointError, match=rf"{disk}/2: no space left on the device"):
            save_too_much()
        manager.close()
        with CheckpointManager(disk, config) as again:
            found = again.find_latest()
            assert found is not None
            assert found.step == 1
            _save(again, 3)  # and the half-written one does not fill the disk for ever
            assert saved_steps(disk) == [3]


@pytest.mark.slow
def test_a_file_size_limit_is_one_clear_error(tmp_path: Path):
    """Works without root: the process may not write files above a limit."""
    code = f"""
import resource, signal, logging
import jax, jax.numpy as jnp
from pathlib import Path
from zaya_jax.checkpoint.manager import CheckpointManager
from zaya_jax.checkpoint.settings import CheckpointConfig
logging.getLogger("absl").setLevel(logging.CRITICAL)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
manager = CheckpointManager(Path({str(tmp_path)!r}), CheckpointConfig())
noise = {{"w": jax.random.normal(jax.random.key(0), (1000, 1000))}}
try:
    manager.save(1, variables=noise, training={{"s": jnp.asarray(1)}}, data={{}}, metadata={{}})
    manager.wait()
except ValueError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("CheckpointError cannot write")
    assert "limit is reached" in done.stdout
