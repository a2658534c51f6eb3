"""A cascade runs its commands in order, stops at the first failure and goes on from there."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from experiments import cascade
from experiments.cascade import CascadeStep, chosen, is_finished, load_steps, run
from experiments.cascade_report import write_cascade_report
from experiments.configs import cascade_small, small
from zaya_jax.config import ConfigError, architecture_differences
from zaya_jax.training.config_file import to_run_config

# A command that leaves a trace, fails while a file named `fail` lies beside its folder, and, with
# `--score`, leaves an evaluation's results.
TOOL = """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--workdir", type=pathlib.Path)
parser.add_argument("--score", type=float)
options = parser.parse_args()
options.workdir.mkdir(exist_ok=True)
with (options.workdir / "runs").open("a") as file:
    file.write("x")
print("at work in", options.workdir.name)
if (options.workdir.parent / "fail").exists():
    sys.exit(3)
if options.score is not None:
    task = {"task": "sums", "method": "none", "problems": 9, "tries": 2, "score": options.score,
            "low": 0.1, "high": 0.9, "tokens": {"mean": 12.4}}
    (options.workdir / "results.json").write_text(json.dumps({"tasks": [task]}))
    (options.workdir / "report.html").write_text("page")
"""


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cascade_tool.py").write_text(TOOL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


STEPS = (
    CascadeStep("train", "cascade_tool"),
    CascadeStep("measure", "cascade_tool", ("--score", "0.5")),
)


def test_steps_run_once_in_order_and_the_report_has_what_they_found(
    workdir: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(STEPS, workdir) == 0
    assert run(STEPS, workdir) == 0
    assert [(workdir / name / "runs").read_text() for name in ("train", "measure")] == ["x", "x"]
    assert b"at work in measure" in capfdbinary.readouterr().out
    assert (workdir / "train.log").read_text() == "at work in train\n"
    table = (workdir / "cascade.md").read_text()
    assert "| measure | sums | none | 9 x 2 | 50.0% | 10.0% to 90.0% | 12 |" in table
    page = (workdir / "report.html").read_text()
    assert '<a href="measure/report.html">' in page
    assert '<a href="train/report.html">' not in page


def test_the_report_tells_what_a_stage_of_rl_solved_before_and_after(workdir: Path) -> None:
    assert run(STEPS[:1], workdir) == 0
    records = [
        {"kind": "validation", "step": step, "time": 1.0, "source": "sums", "solve_rate": rate}
        for step, rate in ((0, 0.25), (20, 0.5), (40, 0.75))
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (workdir / "train" / "metrics.jsonl").write_text(text)
    write_cascade_report(workdir, ["train"])
    line = "| train | sums | held out |  | 75.0% | 25.0% before |  |"
    assert line in (workdir / "cascade.md").read_text()


def test_a_failure_ends_the_cascade_and_the_same_command_goes_on(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(STEPS[:1], workdir) == 0
    (workdir / "fail").touch()
    assert run(STEPS, workdir) == 3
    assert "step measure ended with status 3; see" in capsys.readouterr().err
    (workdir / "fail").unlink()
    assert run(STEPS, workdir) == 0
    assert (workdir / "train" / "runs").read_text() == "x"
    assert (workdir / "measure" / "runs").read_text() == "xx"


def test_a_finished_step_with_other_arguments_is_refused(workdir: Path) -> None:
    assert run(STEPS, workdir) == 0
    other = CascadeStep("measure", "cascade_tool", ("--score", "0.7"))
    with pytest.raises(ConfigError, match=r"step 'measure' in .* ran with other arguments"):
        is_finished(other, workdir)


def test_unknown_steps_and_config_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no step 'rl'; there are train, measure"):
        chosen(STEPS, ["rl"])
    assert chosen(STEPS, ["measure"]) == [STEPS[1]]
    with pytest.raises(ConfigError, match="is no Python file"):
        load_steps(str(tmp_path / "none.py"), tmp_path)
    path = tmp_path / "config.py"
    path.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="defines no get_steps"):
        load_steps(str(path), tmp_path)
    path.write_text(
        "from experiments.cascade import CascadeStep\n"
        "def get_steps(workdir): return [CascadeStep('a', 'm'), CascadeStep('a', 'm')]\n"
    )
    with pytest.raises(ConfigError, match="two steps named 'a'"):
        load_steps(str(path), tmp_path)


def test_a_dry_run_prints_the_commands_and_runs_none(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = workdir / "config.py"
    path.write_text(
        "from experiments.cascade import CascadeStep\n"
        "def get_steps(workdir): return [CascadeStep('train', 'cascade_tool', ('--score', '1'))]\n"
    )
    words = ["--workdir", str(workdir / "new"), "--config", str(path), "--dry-run"]
    assert cascade.main(words) == 0
    printed = capsys.readouterr().out
    assert f"-m cascade_tool --workdir {workdir / 'new' / 'train'} --score 1" in printed
    assert sys.executable not in printed
    assert not (workdir / "new").exists()


def test_every_step_of_the_small_cascade_begins_with_the_one_before(tmp_path: Path) -> None:
    steps = load_steps(cascade.DEFAULT_CONFIG, tmp_path)
    for before, step in itertools.pairwise(steps):
        assert f"--config.init_from={tmp_path / before.name}" in step.arguments
        assert Path(step.arguments[1].partition(":")[0]).exists()
    sft = to_run_config(small.get_config("sft"))
    for name in cascade_small.RL_STEPS:
        config, setup = to_run_config(cascade_small.get_config(name)), cascade_small.get_rl(name)
        assert architecture_differences(config.model, sft.model) == []
        assert setup.engine is not None
