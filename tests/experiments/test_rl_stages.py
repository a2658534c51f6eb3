"""The RL stages of ZAYA1-8B: published figures in the configs, and what each would take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.configs import own_environment, zaya1_8b, zaya1_8b_rl
from zaya_jax.config import ConfigError
from zaya_jax.rl import dry_run
from zaya_jax.rl.environments.protocol import Environment
from zaya_jax.rl.pipeline import PipelineConfig
from zaya_jax.training.config_file import to_run_config

STEPS = {
    "rl_warmup": 232,
    "rlve": 400,
    "math_code_ttc_1": 384,
    "math_code_ttc_2": 464,
    "behavioral": 384,
}


@pytest.mark.parametrize("name", STEPS)
def test_published_figures(name: str) -> None:
    config, setup = to_run_config(zaya1_8b.get_config(name)), zaya1_8b.get_rl(name)
    assert config.train.steps == STEPS[name]
    assert config.optimizer.muon_momentum == 0
    assert 2e-6 <= config.optimizer.peak_learning_rate <= 1e-5
    assert (setup.stage.prompts, setup.stage.group_size) == (128, 16)
    assert (setup.most_prompt_tokens, setup.most_response_tokens) == (20_480, 81_920)
    assert setup.loss.kind == "dppo_binary_tv"
    assert (setup.loss.delta_low, setup.loss.delta_high) == (0.1, 0.1)
    assert setup.stage.router_replay
    assert isinstance(setup.pipeline, PipelineConfig)
    assert (setup.pipeline.updates_per_sync, setup.pipeline.batches_waiting) == (2, 2)
    is_last = name == "behavioral"
    assert setup.stage.rewards.advantage == ("grpo" if is_last else "maxrl")
    assert (setup.stage.rewards.length.coefficient == 0) == is_last


def test_shares_of_the_second_maths_and_code_phase() -> None:
    shares = zaya1_8b.get_rl("math_code_ttc_2").shares
    auxiliary = sum(shares[f"code_{task}"] for task in ("output", "input", "reconstruction"))
    assert auxiliary + shares["code_falsification"] == pytest.approx(26.8)
    assert shares["code"] == 31.4
    assert shares["maths+tail"] + shares["maths+answer"] == pytest.approx(19.4)


def test_an_unknown_stage_is_named() -> None:
    with pytest.raises(ConfigError, match=r"stage 'chess' is none of: pretrain1.*behavioral"):
        zaya1_8b.get_config("chess")
    with pytest.raises(ConfigError, match="RL stage 'sft131k' is none of: rl_warmup"):
        zaya1_8b_rl.get_rl("sft131k")


def test_the_environment_to_copy_tells_right_from_wrong_and_holds_problems_out() -> None:
    (learnt,), (held_out,) = (
        own_environment.get_rl().environments(),
        own_environment.get_rl().held_out(),
    )
    assert isinstance(learnt, Environment)
    for difficulty in range(learnt.hardest + 1):
        problems = [learnt.sample(difficulty, seed) for seed in range(60)]
        assert problems == [learnt.sample(difficulty, seed) for seed in range(60)]
        for problem in problems:
            digits = problem.prompt.removeprefix("smallest ").removesuffix("=")
            assert len(set(digits)) == len(digits) == 3 + difficulty
            assert learnt.score(problem, f" {min(digits)}\n").reward == 1
            assert learnt.score(problem, max(digits)).reward == 0
            assert learnt.score(problem, learnt.demonstration(problem, right=True)).reward == 1
        others = {held_out.sample(difficulty, seed).prompt for seed in range(200)}
        assert not others & {problem.prompt for problem in problems}


@pytest.mark.slow
def test_the_environment_to_copy_is_learnt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.rl", "--config", own_environment.__file__]
    command += ["--workdir", str(tmp_path), "--config.train.steps=20"]
    # The devices of the tests are more than this stage has rows for.
    alone = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ended = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    records = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    solved = {r["step"]: r["solve_rate"] for r in records if r["kind"] == "validation"}
    assert solved[0] < 0.75
    assert solved[20] > solved[0] + 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_every_stage_lowers_and_tells_its_memory(name: str) -> None:
    config, setup = to_run_config(zaya1_8b.get_config(name)), zaya1_8b.get_rl(name)
    plan = dry_run.plan(config, setup)
    assert plan["mesh"]["fsdp"] == 64
    # 8.84 billion parameters in bfloat16; one 64th of them in float32, small ones whole.
    assert plan["sampler"]["weights"] == pytest.approx(2 * 8.84e9, rel=1e-3)
    assert 4 * 8.84e9 / 64 < plan["trainer"]["parameters"] < 1.2 * 4 * 8.84e9 / 64
    # 40 layers of keys and values of 256 numbers in bfloat16, for 32 sequences of full length.
    assert plan["sampler"]["keys and values"] == 32 * 102_400 * 40 * 2 * 256 * 2
    assert min(plan["lowered"].values()) > 0
