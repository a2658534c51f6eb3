"""A LoRA run from its commands: adapters on a pretrained model, resumed, merged, or refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.lora_settings import target_of
from zaya_jax.optimizer.groups import names_of

TINY = Path(__file__).parent / "tiny_config.py"


def run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: on one device, as a user has it."""
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        check=False,
    )


def leaves(path: Path) -> dict[tuple[str, ...], Any]:
    _, variables = load_checkpoint(path)
    pairs = jax.tree_util.tree_leaves_with_path(variables["params"])
    return {names_of(names): np.asarray(leaf) for names, leaf in pairs}


@pytest.mark.slow
def test_adapters_are_trained_resumed_and_merged(tmp_path: Path) -> None:
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    common = ["--config", str(TINY), "--config.optimizer.warmup_steps=0"]
    common += ["--config.train.sample_tokens=4", "--config.train.steps=4"]
    common += ["--config.checkpoint.interval=2"]
    done = run("experiments.pretrain", "--workdir", str(base), *common)
    assert done.returncode == 0, done.stderr

    lora = [*common, f"--config.init_from={base}", "--config.lora.rank=2"]
    lora += ["--config.lora.targets=attention,experts,router"]
    lora += ["--config.optimizer.balancing_learning_rate=0"]
    done = run("experiments.sft", "--workdir", str(tuned), *lora)
    assert done.returncode == 0, done.stderr
    before, after = leaves(base), leaves(tuned)
    for path, leaf in before.items():
        changed = not np.array_equal(leaf, after[path])
        assert changed == (target_of(path) is not None), path

    shutil.rmtree(tuned / "checkpoints" / "4")
    done = run("experiments.sft", "--workdir", str(tuned), *lora)
    assert done.returncode == 0, done.stderr
    for path, leaf in leaves(tuned).items():
        np.testing.assert_array_equal(leaf, after[path], err_msg=str(path))

    for change, message in (
        ("--config.lora.rank=3", "other adapters (saved -> asked for): lora.rank: 2 -> 3"),
        ("--config.lora.rank=0", "other adapters"),
        ("--config.lora.alpha=8", "lora.alpha: 16.0 -> 8.0"),
    ):
        done = run("experiments.sft", "--workdir", str(tuned), *lora, change)
        assert done.returncode == 1, done.stdout
        assert message in done.stderr

    shutil.rmtree(base / "checkpoints" / "4")  # what is left is another model
    shutil.rmtree(tuned / "checkpoints" / "4")
    done = run("experiments.sft", "--workdir", str(tuned), *lora)
    assert done.returncode == 1, done.stdout
    assert "holds other parameters than those this run's adapters" in done.stderr


@pytest.mark.slow
def test_the_dry_run_counts_what_is_trained(tmp_path: Path) -> None:
    words = ["--config", str(TINY), "--workdir", str(tmp_path), "--dry-run"]
    words += ["--config.init_from=x", "--config.lora.rank=2"]
    done = run("experiments.sft", *words)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "dry_run.json").read_text())
    trained = facts["parameters"]["trained adapters"]
    assert 0 < trained < facts["parameters"]["total"] / 10
    assert facts["bytes_per_device"]["gradients"] == 4 * trained
    assert facts["bytes_per_device"]["parameters"] > 4 * facts["parameters"]["total"]
    (groups,) = facts["optimizer_groups"].values()
    assert all(name.endswith(("lora_a", "lora_b")) for name in groups)
