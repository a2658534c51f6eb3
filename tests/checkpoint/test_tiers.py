"""Two tiers of checkpoints: a run goes on from the newest intact one of either."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from zaya_jax.checkpoint import local_tier
from zaya_jax.checkpoint.local_tier import PROCESS
from zaya_jax.checkpoint.manager import CheckpointError, saved_steps
from zaya_jax.checkpoint.manifest import MANIFEST
from zaya_jax.checkpoint.settings import CheckpointConfig, Tier
from zaya_jax.checkpoint.shards import Held, read_shards
from zaya_jax.checkpoint.tiers import LOCAL, TieredCheckpoints, last_finished
from zaya_jax.config import ConfigError


def _config(fast: Path | str, **changes: Any) -> CheckpointConfig:
    settings = {"interval": 10, "local_directory": str(fast), "local_interval": 2}
    return CheckpointConfig(**{**settings, **changes})


def _train(checkpoints: TieredCheckpoints, config: CheckpointConfig, first: int, last: int) -> None:
    """Saves as a run does after its steps `first` to `last`, which it does not finish."""
    for step in range(first, last + 1):
        tier = config.tier_at(step, is_last=False)
        if tier:
            checkpoints.save(
                step,
                variables={"w": jnp.full((64,), float(step))},
                training={"step": jnp.asarray(step)},
                data={"at": step},
                metadata={"step": step},
                tier=tier,
            )
    checkpoints.wait()


def _resumed(directory: Path, config: CheckpointConfig) -> tuple[int, list[str]]:
    """Where a run goes on; what it reads there is what was saved then."""
    with TieredCheckpoints(directory, config) as checkpoints:
        found = checkpoints.find_latest()
        assert found is not None
        template = {"w": jnp.zeros((64,))}
        read = checkpoints.restore(found.step, template, {"step": jnp.asarray(0)})
        assert float(read.variables["w"][0]) == found.step
        assert read.data == {"at": found.step}
        assert checkpoints.metadata(found.step) == {"step": found.step}
        return found.step, found.passed_over


def _local(directory: Path, process: int = 0) -> Path:
    return directory / LOCAL / f"{PROCESS}{process}"


def _damage(checkpoint: Path) -> None:
    files = [path for path in (checkpoint / "variables").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 1)


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, CheckpointConfig]:
    """Durable: 10. Fast: 12 and 14."""
    directory, config = tmp_path / "run" / "checkpoints", _config(tmp_path / "fast")
    with TieredCheckpoints(directory, config) as checkpoints:
        _train(checkpoints, config, 1, 15)
    return directory, config


def test_each_tier_has_its_interval_and_its_retention(run: tuple[Path, CheckpointConfig]):
    directory, _ = run
    assert saved_steps(directory) == [10]
    assert saved_steps(_local(directory)) == [12, 14]
    assert last_finished(directory) == 14


def test_the_newest_of_either_tier_is_taken(run: tuple[Path, CheckpointConfig]):
    directory, config = run
    assert _resumed(directory, config) == (14, [])
    with TieredCheckpoints(directory, config) as checkpoints:
        _train(checkpoints, config, 15, 20)
    assert saved_steps(_local(directory)) == [16, 18]
    assert _resumed(directory, config) == (20, [])


def test_damage_is_found_in_both_tiers(run: tuple[Path, CheckpointConfig]):
    directory, config = run
    _damage(_local(directory) / "14")
    step, passed_over = _resumed(directory, config)
    assert step == 12
    assert "local step 14 is damaged" in passed_over[0]
    _damage(_local(directory) / "12")
    assert _resumed(directory, config)[0] == 10
    _damage(directory / "10")
    with (
        TieredCheckpoints(directory, config) as checkpoints,
        pytest.raises(CheckpointError, match="step 10 is damaged"),
    ):
        checkpoints.find_latest()


def test_a_fast_disk_that_is_gone_costs_the_steps_since_the_durable_one(
    run: tuple[Path, CheckpointConfig], tmp_path: Path
):
    directory, config = run
    shutil.rmtree(tmp_path / "fast")
    assert _resumed(directory, config) == (10, [])
    with TieredCheckpoints(directory, config) as checkpoints:
        _train(checkpoints, config, 11, 12)  # a new folder on it
    assert _resumed(directory, config) == (12, [])


def test_a_new_run_at_the_same_place_does_not_find_old_fast_checkpoints(
    run: tuple[Path, CheckpointConfig],
):
    directory, config = run
    shutil.rmtree(directory)
    with TieredCheckpoints(directory, config) as checkpoints:
        assert checkpoints.find_latest() is None


def test_fast_checkpoints_are_found_when_no_more_are_asked_for(
    run: tuple[Path, CheckpointConfig],
):
    assert _resumed(run[0], CheckpointConfig())[0] == 14


def test_newer_checkpoints_of_both_tiers_are_set_aside(run: tuple[Path, CheckpointConfig]):
    directory, config = run
    with TieredCheckpoints(directory, config) as checkpoints:
        checkpoints.set_aside_after(12)
        assert saved_steps(_local(directory)) == [12]
        checkpoints.set_aside_after(0)
    assert last_finished(directory) == -1


@pytest.mark.parametrize(
    ("step", "is_last", "tier"),
    [
        (3, False, None),
        (4, False, Tier.LOCAL),
        (10, False, Tier.DURABLE),
        (20, False, Tier.DURABLE),
        (3, True, Tier.DURABLE),
    ],
)
def test_a_step_is_saved_in_one_tier(step: int, is_last: bool, tier: Tier | None):
    assert _config("fast").tier_at(step, is_last=is_last) is tier


@pytest.mark.parametrize("changes", [{"local_directory": ""}, {"local_interval": 0}])
def test_half_a_tier_is_refused(changes: dict[str, Any]):
    with pytest.raises(ConfigError, match="give both or none"):
        _config("fast", **changes)


def test_a_fast_disk_that_cannot_be_written_is_named_at_the_start(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError, match=r"cannot make .*file/fast.*choose another checkpoint.local_directory"
    ):
        TieredCheckpoints(tmp_path / "run", _config(tmp_path / "file" / "fast"))


def _two_processes(monkeypatch: pytest.MonkeyPatch, other: dict[int, list[str]]) -> None:
    """This process and one that finds those steps, undamaged, on its own disk."""

    def gather(here: str) -> list[str]:
        return [here, json.dumps(other) if here.startswith("{") else here]

    monkeypatch.setattr(local_tier, "gather_texts", gather)


def _saves(directory: Path) -> dict[int, list[str]]:
    own = _local(directory)
    return {step: [read_shards(own / str(step))[0], ""] for step in saved_steps(own)}


def test_a_step_counts_when_all_processes_have_it(
    run: tuple[Path, CheckpointConfig], monkeypatch: pytest.MonkeyPatch
):
    directory, config = run
    saves = _saves(directory)
    _two_processes(monkeypatch, saves)
    assert _resumed(directory, config) == (14, [])
    _two_processes(monkeypatch, {12: saves[12]})
    assert _resumed(directory, config) == (
        12,
        ["local step 14 is not on the disk of process 1"],
    )
    _two_processes(monkeypatch, {12: saves[12], 14: ["of an earlier start", ""]})
    assert _resumed(directory, config) == (
        12,
        ["local step 14 was saved at different times by the processes"],
    )


def test_the_empty_disk_of_a_new_node_leads_to_the_durable_tier_with_one_line(
    run: tuple[Path, CheckpointConfig], monkeypatch: pytest.MonkeyPatch
):
    directory, config = run
    _two_processes(monkeypatch, {})
    assert _resumed(directory, config) == (
        10,
        ["local checkpoints (of step 12, 14) are not used: process 1 found none"],
    )
    shutil.rmtree(directory / "10")
    with (
        TieredCheckpoints(directory, config) as checkpoints,
        pytest.warns(UserWarning, match="there is no durable checkpoint yet"),
    ):
        assert checkpoints.find_latest() is None


def test_a_manifest_that_is_missing_or_a_shard_list_that_is_cut_off_is_passed_over(
    run: tuple[Path, CheckpointConfig],
):
    directory, config = run
    (_local(directory) / "14" / MANIFEST).unlink()
    assert _resumed(directory, config) == (12, ["local step 14 was not completely written"])
    (_local(directory) / "12" / "shards" / "metadata").write_text("{")
    step, passed_over = _resumed(directory, config)
    assert step == 10
    assert "local step 12 cannot be used" in passed_over[1]


def test_only_the_last_set_aside_stays_on_the_fast_disk(run: tuple[Path, CheckpointConfig]):
    directory, config = run
    with TieredCheckpoints(directory, config) as checkpoints:
        checkpoints.set_aside_after(12)
        checkpoints.set_aside_after(10)
    assert [path.name for path in _local(directory).iterdir()] == ["unusable-12"]


def test_a_mesh_of_which_a_process_would_not_save_all_it_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    half = {"['variables']['w']": Held((64,), (((0, 32),),))}
    monkeypatch.setattr(local_tier, "written_shards", lambda _: half)
    config = _config(tmp_path / "fast")
    with (
        TieredCheckpoints(tmp_path / "run", config) as checkpoints,
        pytest.raises(CheckpointError, match=r"different copies of \['variables'\]\['w'\]"),
    ):
        _train(checkpoints, config, 2, 2)
