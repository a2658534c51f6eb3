"""What the guide reports of the recipe and of router replay comes out of its own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(module: str, folder: Path, *words: str) -> None:
    """On one device, compiled as for a user."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", module, "--workdir", str(folder), *words]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


@pytest.mark.slow
def test_every_stage_of_the_recipe_answers_more_problems(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="the recipe's problems need the extra data")
    run("experiments.recipe", tmp_path)
    rows = json.loads((tmp_path / "recipe.json").read_text(encoding="utf-8"))
    answers = [row["exact answers"] for row in rows]
    losses = [row["loss on problems"] for row in rows]
    assert answers == sorted(set(answers)), answers
    assert losses == sorted(set(losses), reverse=True), losses


@pytest.mark.slow
def test_without_router_replay_a_bfloat16_sampler_drifts_away(tmp_path: Path) -> None:
    run("experiments.replay_mismatch", tmp_path, "--steps", "12")
    assert "<svg" in (tmp_path / "replay_mismatch.svg").read_text(encoding="utf-8")
    curves = json.loads((tmp_path / "replay_mismatch.json").read_text(encoding="utf-8"))
    largest = {arm: max(figures["kl_k3"]) for arm, figures in curves.items()}
    assert largest["replay off"] > 3 * largest["replay on"]
