"""The supervised stages: published figures in the configs, and one small run through all three."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import midtrain, sft
from experiments.command_line import parse_arguments
from zaya_jax.data.mixture import mixture_of
from zaya_jax.optimizer.settings import OptimizerKind
from zaya_jax.training.config_file import load_config, to_run_config

CONFIGS = Path("experiments/configs")
TINY = Path(__file__).parent / "tiny_config.py"

PUBLISHED = {  # context, RoPE base, tokens
    "pretrain1": (4_096, 1e4, 8e12),
    "pretrain2": (4_096, 1e4, 4e12),
    "midtrain32k": (32_768, 1e6, 1.2e12),
    "sft131k": (131_072, 5e6, 660e9),
}


@pytest.mark.parametrize("stage", PUBLISHED)
def test_published_figures(stage: str):
    config = to_run_config(load_config(f"{CONFIGS}/zaya1_8b.py:{stage}"))
    context, rope_theta, tokens = PUBLISHED[stage]
    assert config.data.sequence_length == config.model.max_position_embeddings == context
    assert config.model.rope_theta == rope_theta
    per_step = config.data.batch_size * context
    assert per_step == 4_096 * 4_096
    assert config.train.steps * per_step == pytest.approx(tokens, rel=1e-4)
    assert config.optimizer.kind is OptimizerKind.MUON
    assert config.optimizer.muon_steps == 5
    [weights] = mixture_of(config.data).weights
    assert sum(weights) == pytest.approx(1.0, abs=0.002)


def test_the_first_stage_falls_from_6e4_to_2e4():
    config = to_run_config(load_config(f"{CONFIGS}/zaya1_8b.py:pretrain1"))
    rates = config.optimizer.peak_learning_rate, config.optimizer.final_learning_rate
    assert rates == (6e-4, 2e-4)


@pytest.mark.parametrize("stage", ["pretrain", "midtrain", "sft"])
def test_small_twins_lengthen_context_and_rope_base(stage: str):
    config = to_run_config(load_config(f"{CONFIGS}/small.py:{stage}"))
    order = ["pretrain", "midtrain", "sft"].index(stage)
    assert config.data.sequence_length == 256 * 2**order
    assert config.model.rope_theta == (1e4, 1e5, 5e5)[order]


@pytest.mark.parametrize(("stage", "name"), [(midtrain, "midtrain"), (sft, "sft")])
def test_each_stage_has_its_own_default_config(stage: object, name: str):
    arguments = parse_arguments(
        ["--workdir", "x"], program="x", summary="", default_config=stage.CONFIG
    )
    assert arguments.config == to_run_config(load_config(f"{CONFIGS}/small.py:{name}"))


def test_an_unknown_stage_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        midtrain.main(["--workdir", "x", "--config", f"{CONFIGS}/zaya1_8b.py:rl"])
    assert "stage 'rl' is none of: pretrain1" in capsys.readouterr().err


def _run(module: str, *words: str) -> None:
    """A process of its own: on one device, as a user has it."""
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_later_stage_takes_the_earlier_ones_model_to_a_longer_context(tmp_path: Path):
    common = ["--config", str(TINY), "--config.train.steps=2", "--config.optimizer.warmup_steps=0"]
    common += ["--config.train.sample_tokens=0", "--config.optimizer.kind=muon"]
    first, second = tmp_path / "first", tmp_path / "second"
    _run("experiments.pretrain", *common, "--workdir", str(first))
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{n}?"},
                {"role": "assistant", "reasoning": "r" * n, "content": f"{n}!"},
            ]
        }
        for n in range(40)
    ]
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _run(
        "experiments.sft",
        *common,
        f"--config.init_from={first}",
        "--config.data.packing=planned",
        f"--config.data.mixture={source}=2,synthetic=1",
        "--config.data.sequence_length=128",
        "--config.model.max_position_embeddings=128",
        "--config.model.rope_theta=1e6",
        "--workdir",
        str(second),
    )
    records = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    sources = {r["source"] for r in records if r["kind"] == "validation"}
    assert sources == {"chats.jsonl", "synthetic"}
    saved = json.loads((second / "config.json").read_text())
    assert saved["model"]["rope_theta"] == 1e6
