"""A cascade that is killed in each of its steps ends with what an undisturbed one ends with."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from zaya_jax.checkpoint.load import load_checkpoint

ROOT = Path(__file__).parents[2]
STEPS = ("data", "pretrain", "sft", "rl_warmup", "sft_measured", "light_0")
# Seconds after the start of a step at which it is killed: while Python starts, while it compiles,
# and once it works. Which is which depends on the machine; the draw covers all.
LATEST = 12.0

# The small cascade's own steps, a few updates each and few problems; what is reinforced is what a
# policy that knows nothing gets right half of the time.
CONFIG = """
import dataclasses
from experiments.cascade_data import HELD_OUT
from experiments.configs import cascade_small
from zaya_jax.rl.environments.protocol import Problem, Score

KEPT = {steps!r}
SHORT = {{"pretrain": 6, "sft": 4, "rl_warmup": 4}}
get_config = cascade_small.get_config

class Parity:
    name, hardest = "parity", 0

    def sample(self, difficulty, seed):
        return Problem(self.name, difficulty, seed, str(seed % 10), {{}})

    def score(self, problem, answer):
        return Score(float(len(answer) % 2 == 0), "its length")

def get_rl(name):
    setup = cascade_small.get_rl(name)
    stage = dataclasses.replace(setup.stage, prompts=4, group_size=4)
    return dataclasses.replace(
        setup, stage=stage, environments=lambda: (Parity(),), held_out=lambda: (Parity(),),
        evaluation_problems=16,
    )

def get_steps(workdir):
    before = ()
    for step in cascade_small.get_steps(workdir):
        if step.name not in KEPT:
            continue
        words = tuple(w for w in step.arguments if not w.startswith("--config.init_from"))
        if step.name in SHORT:
            words += (
                f"--config.train.steps={{SHORT[step.name]}}",
                "--config.train.validation_interval=2",
                "--config.checkpoint.interval=1",
            )
            if step.name == "rl_warmup":
                words = ("--config", f"{{__file__}}:rl_warmup", *words[2:])
            else:
                words += ("--config.optimizer.warmup_steps=2",)
        elif step.name != "data":
            words += tuple(f"--config.tasks.{{name}}.problems=2" for name in HELD_OUT)
        yield dataclasses.replace(step, arguments=(*words, *before))
        if step.name in SHORT:
            before = (f"--config.init_from={{workdir / step.name}}",)
"""


def start(workdir: Path, config: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.cascade"]
    command += ["--workdir", str(workdir), "--config", str(config)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run_to_the_end(workdir: Path, config: Path) -> None:
    process = start(workdir, config)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed


def kill_in(step: str, workdir: Path, config: Path, after: float, *, whole_group: bool) -> None:
    """Starts the cascade and kills it so many seconds into the step, or before the step ends."""
    process = start(workdir, config)
    assert process.stdout is not None
    for line in process.stdout:
        if line == f"==> {step}\n":
            break
        assert not line.startswith("error:"), line
    else:
        pytest.fail(f"the cascade ended before {step}")
    time.sleep(after)
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.stdout.close()
    process.wait()


def parameters(workdir: Path, step: str) -> list[np.ndarray]:
    _, variables = load_checkpoint(str(workdir / step))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(variables)]


@pytest.mark.slow
def test_a_cascade_killed_in_every_step_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    config = tmp_path / "config.py"
    config.write_text(CONFIG.format(steps=STEPS))
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    run_to_the_end(undisturbed, config)
    draw = random.Random(0)
    for step in STEPS:
        for whole_group in (True, False):
            if (killed / step / "cascade_finished.json").exists():
                continue  # it was quicker than the kill
            kill_in(step, killed, config, draw.uniform(0, LATEST), whole_group=whole_group)
    run_to_the_end(killed, config)
    for step in ("pretrain", "sft", "rl_warmup"):
        for one, other in zip(parameters(undisturbed, step), parameters(killed, step), strict=True):
            np.testing.assert_array_equal(one, other)
    for step in ("sft_measured", "light_0"):
        one, other = (
            json.loads((folder / step / "results.json").read_text())["tasks"]
            for folder in (undisturbed, killed)
        )
        assert [task["by_problem"] for task in one] == [task["by_problem"] for task in other]
    table = (killed / "cascade.md").read_text()
    assert "rl_warmup" in table
    assert "sft: single" in table
