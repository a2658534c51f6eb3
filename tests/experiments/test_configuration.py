"""Config files, overrides and the errors of the command line."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.command_line import parse_arguments
from experiments.configs import base, demo
from experiments.pretrain import plan
from zaya_jax import presets
from zaya_jax.config import ConfigError, LayerType
from zaya_jax.optimizer.settings import Schedule
from zaya_jax.training.config_file import (
    apply_overrides,
    field_help,
    leaf_types,
    load_config,
    split_overrides,
    to_run_config,
)
from zaya_jax.training.resolved import from_plain, setting_differences, to_plain
from zaya_jax.training.settings import RunConfig

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "experiments" / "tiny_config.py"


def _override(*pairs: tuple[str, str]) -> RunConfig:
    return to_run_config(apply_overrides(base.get_config(), pairs))


def test_base_is_the_defaults_of_the_dataclasses():
    assert to_run_config(base.get_config()) == RunConfig()


@pytest.mark.parametrize("name", list(presets.PRESETS))
def test_every_preset_is_a_variant_of_base(name: str):
    assert to_run_config(base.get_config(name)).model == presets.preset(name)


@pytest.mark.parametrize("file", sorted((ROOT / "experiments" / "configs").glob("[!_]*.py")))
def test_every_config_file_resolves_and_states_its_command(file: Path):
    to_run_config(load_config(str(file)))
    assert f"--config experiments/configs/{file.name}" in file.read_text()


def test_the_demo_is_the_default():
    arguments = parse_arguments(["--workdir", "x"], program="p", summary="")
    assert arguments.config == to_run_config(demo.get_config())


def test_overrides_are_read_by_the_declared_type():
    config = _override(
        ("train.steps", "7"),
        ("optimizer.peak_learning_rate", "1"),
        ("optimizer.schedule", "wsd"),
        ("optimizer.decay_steps", "3"),
        ("log.terminal", "false"),
        ("data.max_bytes", "none"),
        ("model.layer_pattern", "sliding,full"),
        ("model.sliding_window", "9"),
        ("init_from", "somewhere"),
    )
    assert config.train.steps == 7
    assert config.optimizer.peak_learning_rate == 1.0
    assert config.optimizer.schedule is Schedule.WSD
    assert config.log.terminal is False
    assert config.data.max_bytes is None
    assert config.model.layer_pattern == (LayerType.SLIDING, LayerType.FULL)
    assert config.model.sliding_window == 9
    assert config.init_from == "somewhere"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("model.num_layer", "model.num_layers"),
        ("train.step", "train.steps"),
        ("learning_rate", "optimizer.peak_learning_rate"),
        ("optimiser.beta1", "optimizer.beta1"),
        ("batch_size", "data.batch_size"),
    ],
)
def test_an_unknown_field_gets_the_nearest_name(name: str, nearest: str):
    with pytest.raises(ConfigError, match=f"unknown config field '{name}'.*--config.{nearest}"):
        _override((name, "1"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.steps", "many", "is not an integer"),
        ("train.steps", "1.5", "is not an integer"),
        ("optimizer.beta1", "x", "is not a number"),
        ("log.terminal", "maybe", "is not true or false"),
        ("optimizer.schedule", "linear", "one of: cosine, wsd, constant"),
        ("model.num_kv_heads", "3", "KV heads must divide"),
        ("train.microbatches", "3", "must divide the batch"),
        ("data.sequence_length", "99999", "max_position_embeddings"),
        ("train.steps", "0", r"train\.steps=0: must be at least 1"),
        ("profile.steps", "0", r"profile\.steps=0"),
    ],
)
def test_a_bad_value_is_named(name: str, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        _override((name, text))


def test_three_ways_to_write_an_override():
    words = ["--workdir", "w", "--config.train.steps=3", "--config.train.seed", "4"]
    rest, overrides = split_overrides([*words, "--config.log.terminal", "--dry-run"])
    assert rest == ["--workdir", "w", "--dry-run"]
    assert overrides == [("train.steps", "3"), ("train.seed", "4"), ("log.terminal", "true")]


def test_a_value_left_out_is_an_error():
    with pytest.raises(ConfigError, match=r"--config\.train\.steps needs a value"):
        split_overrides(["--config.train.steps", "--dry-run"])


def test_a_variant_is_chosen_after_the_colon():
    path = ROOT / "experiments" / "configs" / "base.py"
    assert load_config(f"{path}:mini").model.hidden_size == presets.mini().hidden_size


def test_errors_in_config_files_are_one_line_with_the_place(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tiny_config\.py', line \d+: .*num_layer") as caught:
        load_config(f"{TINY}:misspelt")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(str(tmp_path / "none.py"))
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ConfigError, match="defines no get_config"):
        load_config(str(tmp_path / "empty.py"))
    (tmp_path / "broken.py").write_text("def get_config(:\n")
    with pytest.raises(ConfigError, match="line 1"):
        load_config(str(tmp_path / "broken.py"))
    (tmp_path / "fails.py").write_text("def get_config():\n    return [][1]\n")
    with pytest.raises(ConfigError, match=r"fails\.py', line 2: list index out of range"):
        load_config(str(tmp_path / "fails.py"))


def test_plain_form_survives_json():
    config = to_run_config(demo.get_config())
    assert from_plain(json.loads(json.dumps(to_plain(config)))) == config


def test_differences_name_section_field_and_both_values():
    config = RunConfig()
    changed = dataclasses.replace(config, init_from="x")
    assert setting_differences(to_plain(config), changed) == ["init_from:  -> x"]


def test_help_lists_every_field_with_its_meaning():
    lines = [line for line in field_help().splitlines() if line.strip()]
    documented = {line.split()[0].removeprefix("--config.").split("=")[0]: line for line in lines}
    assert set(documented) == set(leaf_types())
    assert [name for name, line in documented.items() if len(line.split(maxsplit=1)) < 2] == []


@pytest.mark.parametrize(
    "wrong", ["--config.model.num_layer=4", "--confg=x", "--config.train.steps=x"]
)
def test_a_wrong_command_line_is_one_line_and_status_2(wrong: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.pretrain", "--workdir", str(tmp_path / "new"), wrong],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_dry_run_of_the_8b_model_allocates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    # Dense experts lower sooner; the sizes are the same.
    changes = [("data.sequence_length", "4096"), ("model.expert_dispatch", "dense")]
    config = apply_overrides(base.get_config("zaya1_8b"), changes)
    assert plan(to_run_config(config), tmp_path) == 0
    facts = json.loads((tmp_path / "dry_run.json").read_text())
    assert facts["parameters"]["total"] == 8_840_489_464
    balancing = 40 * 17
    assert facts["bytes_per_device"]["parameters"] == 4 * (8_840_489_464 - balancing)
    assert facts["bytes_per_device"]["optimizer"] > 2 * facts["bytes_per_device"]["parameters"] - 1
    assert (tmp_path / "config.json").exists()
    assert "8,840,489,464" in capsys.readouterr().out
