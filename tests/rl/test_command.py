"""The RL command: errors of one line; interrupted and resumed it is the same run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from experiments.rl import main, reinforce
from experiments.rl_start import DEFAULT_CONFIG, load_setup
from tests.rl.test_stage import CLOCK
from zaya_jax.config import ConfigError
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.rl import dry_run
from zaya_jax.rl.dynamic_sampling import GroupFilter
from zaya_jax.rl.environments.practice import PracticeEnvironment
from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.errors import NothingToLearnError, RLError
from zaya_jax.rl.setup import RLSetup
from zaya_jax.training.config_file import load_config, to_run_config
from zaya_jax.training.metrics_file import read_metrics
from zaya_jax.training.placement import Placement
from zaya_jax.training.settings import RunConfig

CONFIGS = Path(DEFAULT_CONFIG).parent
TIMES = {"time", "detail", *CLOCK}


def tiny(steps: int, variant: str = "") -> tuple[RunConfig, RLSetup]:
    config = load_config(DEFAULT_CONFIG)
    config.model.hidden_size, config.model.expert_intermediate_size = 16, 16
    config.model.num_query_heads, config.model.num_kv_heads, config.model.head_dim = 2, 1, 8
    config.train.steps, config.checkpoint.interval = steps, 1
    config.mesh.data = 1  # tests have several devices
    setup = load_setup([f"--config={DEFAULT_CONFIG}:{variant}"] if variant else [])
    assert setup.cold_start is not None
    stage = dataclasses.replace(setup.stage, prompts=2, group_size=4, group_filter=GroupFilter.NONE)
    cold = dataclasses.replace(setup.cold_start, steps=2)
    return to_run_config(config), dataclasses.replace(
        setup, stage=stage, cold_start=cold, evaluation_interval=2, evaluation_problems=4
    )


def story(workdir: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if k not in TIMES} for r in read_metrics(workdir)]


def run(workdir: Path, steps: int, variant: str = "") -> int:
    config, setup = tiny(steps, variant)
    return reinforce(config, setup, workdir, Placement(config.model, None))


@pytest.mark.slow
def test_a_run_in_two_parts_tells_the_story_of_one(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", 4) == 0
    assert run(tmp_path / "parts", 2) == 0
    assert run(tmp_path / "parts", 4) == 0
    assert story(tmp_path / "parts") == story(tmp_path / "whole")
    assert "practice/" in (tmp_path / "whole" / "rollouts.txt").read_text()


@pytest.mark.slow
def test_the_pipeline_trains_with_the_engine_and_goes_on_after_an_interruption(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, 2, "pipeline") == 0
    assert run(tmp_path, 4, "pipeline") == 0
    steps = [record for record in read_metrics(tmp_path) if record["kind"] == "train"]
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    for record in steps:
        assert record["flipped_routes"] == 0
        assert record["policy_age_max"] <= 8
    # Weights of the first two updates are those of the policy: the engine's numbers are too.
    assert steps[0]["ratio_max"] == pytest.approx(1, abs=1e-4)


class Always(PracticeEnvironment):
    """Gives every answer the same reward."""

    reward = 1.0

    def score(self, problem: Problem, answer: str) -> Score:
        return Score(self.reward, "always")


@pytest.mark.slow
def test_a_solved_stage_ends_well_and_an_unsolvable_one_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, setup = tiny(4)
    stage = dataclasses.replace(setup.stage, group_filter=GroupFilter.TASK, most_rounds=2)
    setup = dataclasses.replace(
        setup, stage=stage, environments=lambda: (Always("sort"),), held_out=tuple
    )
    placement = Placement(config.model, None)
    for _ in range(2):  # the same command again finds the same
        assert reinforce(config, setup, tmp_path / "solved", placement) == 0
        printed = capsys.readouterr().out
        assert "ending after step 0, nothing is left to learn: all 4 groups" in printed
    monkeypatch.setattr(Always, "reward", 0.0)
    with pytest.raises(NothingToLearnError, match=r"mean reward 0\.000"):
        reinforce(config, setup, tmp_path / "unsolvable", placement)


def test_a_dry_run_tells_what_trainer_and_sampler_hold() -> None:
    config, setup = tiny(2, "pipeline")
    plan = dry_run.plan(config, setup)
    cache = 128 * 24 * 2 * (2 * 1 * 8) * 4  # tokens, layers, keys and values of 1 head of 8, bytes
    assert plan["sampler"]["keys and values"] == cache
    assert plan["trainer"]["parameters"] == plan["trainer"]["gradients"]
    assert plan["sampler"]["weights"] == plan["trainer"]["parameters"]
    text = dry_run.describe(plan)
    assert "in a batch                                 8" in text


def test_rows_that_the_mesh_does_not_divide_are_named_as_the_stage_names_them() -> None:
    config, setup = tiny(2)
    config = dataclasses.replace(config, mesh=MeshConfig(data=8))
    with pytest.raises(ConfigError, match="rows_per_microbatch=20: must be a multiple of"):
        dry_run.plan(config, setup)


def test_the_small_config_and_its_control_load() -> None:
    assert load_setup([]).stage.shuffle_rewards is False
    for words in (
        ["--config", f"{DEFAULT_CONFIG}:shuffled"],
        [f"--config={DEFAULT_CONFIG}:shuffled"],
    ):
        assert load_setup([*words, "--config.train.steps=3"]).stage.shuffle_rewards is True


def test_a_config_of_another_stage_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"defines no get_rl\(name=...\): is it an RL config"):
        main(["--workdir", str(tmp_path / "run"), "--config", str(CONFIGS / "demo.py")])
    assert not (tmp_path / "run").exists()


def test_a_misspelt_field_of_the_setup_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from zaya_jax.rl.setup import RLSetup\ndef get_rl():\n    return RLSetup(promts=3)\n"
    )
    with pytest.raises(ConfigError, match=r"own\.py', line 3: .*argument"):
        load_setup(["--config", str(path)])
    path.write_text("def get_rl():\n    pass\n")
    with pytest.raises(ConfigError, match=r"get_rl returned NoneType"):
        load_setup(["--config", str(path)])


def test_lengths_that_do_not_fit_a_row_are_refused() -> None:
    with pytest.raises(RLError, match="most_prompt_tokens=60 and most_response_tokens=6"):
        dataclasses.replace(load_setup([]), most_prompt_tokens=60)
