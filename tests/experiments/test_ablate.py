"""A comparison matches sizes, makes every run once, and says what its seeds showed."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import ablate
from experiments.ablation import runs as runs_module
from experiments.ablation.grid import Arm, Grid, Match, changed
from experiments.ablation.matching import match_model, matched_arms
from experiments.ablation.results import Curve, Spread, first_step_at, steps_until_stays
from experiments.configs import ablations
from tests.experiments import tiny_config
from zaya_jax.config import ConfigError
from zaya_jax.model_size import flops_per_token, parameter_count
from zaya_jax.training.config_file import to_run_config
from zaya_jax.training.finish import mark_finished
from zaya_jax.training.preemption import StopSignal
from zaya_jax.training.resolved import to_plain
from zaya_jax.training.settings import RunConfig

CONFIG = str(Path(__file__).parents[2] / "experiments" / "configs" / "ablations.py")
GRID = Grid(
    question="Which of two rates?",
    baseline="released",
    arms=(Arm("released", {}), Arm("linear", {"model.router": "linear"})),
    seeds=(0, 1),
    learning_rates=(1e-3, 2e-3),
    switch_step=40,
)


@pytest.mark.parametrize("name", ablations._GRIDS)
def test_every_declared_grid_can_be_matched(name: str) -> None:
    grid, base = ablations.get_grid(name), to_run_config(ablations.get_config(name))
    arms = {arm.name: arm for arm in matched_arms(grid, base)}
    reference = arms[grid.baseline].sizes
    for arm in arms.values():
        if grid.match is Match.PARAMETERS:
            assert arm.sizes.parameters == pytest.approx(reference.parameters, rel=0.02)
        if grid.match is Match.FLOPS:
            assert arm.sizes.flops_per_token == pytest.approx(reference.flops_per_token, rel=0.02)


def test_cca_gqa_and_mla_are_compared_at_one_cache_size() -> None:
    base = to_run_config(ablations.get_config("attention"))
    arms = {arm.name: arm.sizes for arm in matched_arms(ablations.get_grid("attention"), base)}
    # 2 bytes * 4 layers * (key and value of one head of 16, or a latent of 24 and 8 rotated)
    assert {arms[name].cache_bytes_per_token for name in ("cca_2x_8x", "gqa", "mla")} == {256}


def test_a_config_without_a_grid_is_refused_in_one_line(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def get_grid(name):\n    return name\n")
    with pytest.raises(ConfigError, match="get_grid returned str"):
        ablate.load_grid(str(own), "mine")
    with pytest.raises(ConfigError, match=r"defines no get_grid\(name=...\): is it one of"):
        ablate.load_grid(tiny_config.__file__, "mine")
    with pytest.raises(ConfigError, match=r"names no grid: --config .*ablations\.py:GRID"):
        ablate.parse(["--workdir", str(tmp_path), "--config", CONFIG])


def test_matching_finds_the_nearest_value_and_refuses_a_poor_one() -> None:
    model = to_run_config(tiny_config.get_config()).model
    wider = model.replace(expert_intermediate_size=24)
    for count in (parameter_count, lambda own: flops_per_token(own, 32)):
        matched = match_model(model, count(wider), count, "expert_intermediate_size", "arm")
        assert matched == wider
    with pytest.raises(ConfigError, match=r"arm 'x': no expert_intermediate_size .* best, 1, is"):
        match_model(model, 10, parameter_count, "expert_intermediate_size", "x")


def test_unknown_grids_arms_and_fields_are_refused_with_the_names_there_are(tmp_path: Path) -> None:
    where = ["--workdir", str(tmp_path)]
    with pytest.raises(ConfigError, match="grid 'routers' is none of: router, balancing"):
        ablate.parse([*where, "--config", f"{CONFIG}:routers"])
    with pytest.raises(ConfigError, match=r"no arm 'mlpeda'.* did you mean 'mlp_eda'"):
        ablate.parse([*where, "--config", f"{CONFIG}:router", "--arms", "mlpeda"])
    with pytest.raises(ConfigError, match=r"changes 'model\.routers', which is no section\.field"):
        changed(RunConfig(), {"model.routers": "mlp"})
    small = ablate.parse([*where, "--config", f"{CONFIG}:router", "--arms=mlp", "--seeds=4,5"])
    assert [arm.name for arm in small.grid.arms] == ["linear", "mlp"]  # the baseline stays
    assert small.grid.seeds == (4, 5)


class FakeTraining:
    """Stands for `pretrain`: writes what a run leaves, and stops where it is told to."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.made: list[str] = []
        self._stops_at = stops_at

    def __call__(self, config: RunConfig, folder: Path, stop: StopSignal) -> int:
        self.made.append(f"{folder.parent.name}/{folder.name}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(to_plain(config)))
        if len(self.made) == self._stops_at:
            return 130
        is_linear, rate = config.model.router == "linear", config.optimizer.peak_learning_rate
        end = 2.0 + 0.5 * is_linear + abs(rate - 2e-3) * 100 + 0.01 * config.train.seed
        records = [
            {"kind": "validation", "step": s, "time": 0.0, "source": "t", "loss": loss}
            for s, loss in ((0, 5.0), (30, end + 0.4), (60, end))
        ]
        for step in range(1, 61):
            even = 0.995 if step > (30 if is_linear else 10) and not 40 < step <= 45 else 0.8
            records.append(
                {"kind": "train", "step": step, "time": 0.0, "loss": 3.0}
                | {"load_entropy": [even, even], "residual_rms": [1.0, 2.0, 4.0]}
            )
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "metrics.jsonl").write_text(lines)
        mark_finished(folder, config.train.steps)
        return 0


def run_grid(workdir: Path, training: FakeTraining, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(runs_module, "pretrain", training)
    base = to_run_config(tiny_config.get_config())
    arguments = ablate.Arguments("two_rates", GRID, base, workdir, False)
    with StopSignal() as stop:
        return ablate.compare(arguments, matched_arms(GRID, base), stop)


def test_a_grid_tries_rates_with_one_seed_and_never_makes_a_finished_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = FakeTraining(stops_at=3)
    assert run_grid(tmp_path, interrupted, monkeypatch) == 130
    resumed = FakeTraining()
    assert run_grid(tmp_path, resumed, monkeypatch) == 0
    assert interrupted.made[-1] == resumed.made[0] == "linear/rate_0.001_seed_0"
    assert resumed.made[1:] == [
        "linear/rate_0.002_seed_0",
        "released/rate_0.002_seed_1",
        "linear/rate_0.002_seed_1",
    ]
    again = FakeTraining()
    assert run_grid(tmp_path, again, monkeypatch) == 0
    assert again.made == []

    table = json.loads((tmp_path / "table.json").read_text())
    released, linear = table["arms"]
    assert released["learning_rate"] == linear["learning_rate"] == 2e-3
    assert released["loss"]["values"] == pytest.approx([2.0, 2.01])
    assert linear["difference"]["mean"] == pytest.approx(0.5)
    assert linear["steps_to_baseline"]["values"] == [None, None]
    assert released["steps_to_baseline"]["values"] == pytest.approx([1.0, 1.0])
    assert released["balanced"]["mean"] < linear["balanced"]["mean"]
    assert released["rebalanced"]["mean"] == linear["rebalanced"]["mean"]
    assert released["residual_growth"]["mean"] == 4.0
    page = (tmp_path / "curves.html").read_text()
    assert 'class="band' in page  # the spread over seeds
    assert "http" not in page.replace("http://www.w3.org", "")  # self-contained
    assert (tmp_path / "load_entropy.svg").read_text().startswith("<svg xmlns=")
    assert "| linear | 0.002 | 2.5050 [2.5000, 2.5100] |" in (tmp_path / "table.md").read_text()


def test_a_folder_with_a_run_of_other_settings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_grid(tmp_path, FakeTraining(), monkeypatch) == 0
    file = tmp_path / "linear" / "rate_0.002_seed_1" / "config.json"
    saved = json.loads(file.read_text())
    saved["train"]["steps"] = 7
    file.write_text(json.dumps(saved))
    with pytest.raises(ConfigError, match=r"other settings .*train\.steps: 7 -> 60"):
        run_grid(tmp_path, FakeTraining(), monkeypatch)


def test_steps_until_an_entropy_stays_high_are_counted_from_the_last_time_it_was_low() -> None:
    values = [0.5] * 10 + [1.0] * 10 + [0.5] * 10 + [1.0] * 20
    curve = Curve(tuple(range(1, 51)), tuple(values))
    # The mean of 8 steps holds the last low step until step 30 + 8.
    assert steps_until_stays(curve, 0.99, 0, 50) == 38
    assert steps_until_stays(curve, 0.99, 30, 50) == 1  # nothing before counts
    assert steps_until_stays(curve, 0.99, 0, 30) is None
    noisy = dataclasses.replace(curve, values=tuple([0.992, 0.989] * 25))
    assert steps_until_stays(noisy, 0.99, 0, 50) == 1


def test_the_step_at_which_a_loss_is_reached_is_interpolated() -> None:
    curve = Curve((0, 20, 40), (5.0, 3.0, 2.0))
    assert first_step_at(curve, 2.5) == 30.0
    assert first_step_at(curve, 6.0) == 0.0
    assert first_step_at(curve, 1.0) is None


def test_a_spread_needs_a_number_of_every_seed() -> None:
    assert Spread.of([1.0, 3.0]) == Spread(2.0, 1.0, 3.0, (1.0, 3.0))
    assert Spread.of([1.0, None]).mean is None
    assert Spread.of([1.0, math.inf]).mean is None


@pytest.mark.slow
def test_a_grid_really_trains_and_goes_on(tmp_path: Path) -> None:
    small = ["--config.train.steps=4", "--config.train.validation_interval=2"]
    small += ["--config.model.num_layers=1", "--config.optimizer.warmup_steps=1"]
    small += ["--config.data.sequence_length=32", "--config.data.batch_size=2"]
    options = ["--workdir", str(tmp_path), "--config", f"{CONFIG}:residual", "--seeds=0", *small]
    # A process of its own: here are eight devices, and variants run on one.
    command = [sys.executable, "-m", "experiments.ablate", *options]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    assert outputs[0].count(": training") == 2
    assert outputs[1].count(": finished already") == 2
    table = (tmp_path / "residual" / "table.md").read_text()
    assert table in outputs[0]
    assert table in outputs[1]
