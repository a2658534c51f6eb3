"""A cascade runs its commands in order, stops at the first failure and goes on from there."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from experiments import cascade, cascade_data
from experiments.cascade import run
from experiments.cascade_report import write_cascade_report
from experiments.cascade_steps import CascadeStep, chosen, is_finished, load_steps, state_of
from experiments.configs import cascade_small
from zaya_jax.config import ConfigError, architecture_differences
from zaya_jax.training.config_file import to_run_config
from zaya_jax.training.workdir import claimed

ROOT = Path(__file__).parents[2]

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
    other = 2 * options.score - 1
    task = {"task": "sums", "problems": 2, "tries": 4, "score": options.score,
            "by_problem": [{"score": 1.0}, {"score": other}], "new_tokens_per_problem": 1234.4,
            "majority_at": {"1": 0.3, "4": options.score / 2}}
    (options.workdir / "results.json").write_text(json.dumps({"tasks": [task]}))
    (options.workdir / "report.html").write_text("page")
"""

# A command that works until it is told to stop, and then saves itself.
PATIENT = """
import argparse, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--workdir", type=pathlib.Path)
folder = parser.parse_args().workdir
folder.mkdir()
def save(number, frame):
    (folder / "saved").touch()
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
(folder / "ready").touch()
time.sleep(60)
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
    CascadeStep("vote_0", "cascade_tool", ("--score", "0.5"), "vote"),
    CascadeStep("vote_1", "cascade_tool", ("--score", "1.0"), "vote"),
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
    alone = "| measure | sums | 2 x 4 | 50.0% | 0.0% to 100.0% |  | 25.0% | 1,234 |"
    # Two seeds: the interval is over problems, whose means are 1 and 0.5.
    seeds = "| vote | sums | 2 x 4 | 75.0% | 50.0% to 100.0% | 50.0%, 100.0% | 37.5% | 1,234 |"
    assert table.splitlines()[-2:] == [alone, seeds]
    page = (workdir / "report.html").read_text()
    assert '<a href="measure/report.html">' in page
    assert '<a href="train/report.html">' not in page


def test_the_report_tells_what_a_stage_of_rl_solved_before_and_after(workdir: Path) -> None:
    assert run(STEPS[:1], workdir) == 0
    records = [
        {
            "kind": "validation",
            "step": step,
            "time": 1.0,
            "source": source,
            "solve_rate": rate,
            "low": rate - 0.1,
            "high": rate + 0.1,
        }
        for source, rates in {"sums": (0.25, 0.3, 0.75), "words": (0.5, 0.9, 0.55)}.items()
        for step, rate in zip((0, 20, 40), rates, strict=True)
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (workdir / "train" / "metrics.jsonl").write_text(text)
    write_cascade_report(workdir, {"train": ""})
    table = (workdir / "cascade.md").read_text().splitlines()
    assert table[2:4] == [
        "| train | sums | 25.0% | 15.0% to 35.0% | 75.0% | 65.0% to 85.0% | yes |",
        "| train | words | 50.0% | 40.0% to 60.0% | 55.0% | 45.0% to 65.0% | no |",
    ]


def test_a_failure_ends_the_cascade_and_the_same_command_goes_on(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(STEPS[:1], workdir) == 0
    (workdir / "fail").touch()
    assert run(STEPS[:2], workdir) == 3
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
        chosen(STEPS[:2], ["rl"])
    assert chosen(STEPS, ["measure"]) == [STEPS[1]]
    with pytest.raises(ConfigError, match=r"none\.py' does not exist"):
        load_steps(str(tmp_path / "none.py"), tmp_path)
    (tmp_path / "steps.txt").touch()
    with pytest.raises(ConfigError, match="is not a Python file"):
        load_steps(str(tmp_path / "steps.txt"), tmp_path)
    path = tmp_path / "config.py"
    path.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="defines no get_steps"):
        load_steps(str(path), tmp_path)
    path.write_text("def get_steps(workdir): return ['train']\n")
    with pytest.raises(ConfigError, match="get_steps gives 'train', no CascadeStep"):
        load_steps(str(path), tmp_path)
    path.write_text(
        "from experiments.cascade_steps import CascadeStep\n"
        "def get_steps(workdir): return [CascadeStep('a', 'm'), CascadeStep('a', 'm')]\n"
    )
    with pytest.raises(ConfigError, match="two steps named 'a'"):
        load_steps(str(path), tmp_path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def get_steps(workdir): return None", r"get_steps gives None, must be CascadeSteps"),
        ("def get_steps(workdir): return []", r"get_steps gives \[\], must be CascadeSteps"),
        ("get_steps = 3", r"bad\.py'.*not callable"),
        ("def get_steps(): return []", r"bad\.py'.*takes 0 positional arguments"),
        ("def get_steps(workdir): raise ValueError('boo')", r"bad\.py'.*boo"),
        ("def get_steps(workdir):\n  yield 1 / 0", r"bad\.py'.*division by zero"),
        ("def get_steps(", r"bad\.py'"),
        ("import nosuch", r"bad\.py'.*nosuch"),
    ],
)
def test_a_config_file_that_goes_wrong_is_one_error(
    body: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.py"
    path.write_text(body + "\n")
    with pytest.raises(ConfigError, match=message):
        load_steps(str(path), tmp_path)


@pytest.mark.parametrize("name", ["", "../out", "/abs", ".hidden", "a/b", 3])
def test_a_step_cannot_leave_the_cascades_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="it names a folder"):
        CascadeStep(name, "cascade_tool")


@pytest.mark.parametrize("arguments", ["--foo", ("--foo", 1), None, ["--foo"]])
def test_arguments_of_a_step_are_texts(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="must be a tuple of texts"):
        CascadeStep("train", "cascade_tool", arguments)


def test_a_dry_run_prints_the_commands_and_runs_none(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = workdir / "config.py"
    path.write_text(
        "from experiments.cascade_steps import CascadeStep\n"
        "def get_steps(workdir): return [CascadeStep('train', 'cascade_tool', ('--score', '1'))]\n"
    )
    words = ["--workdir", str(workdir / "new"), "--config", str(path), "--dry-run"]
    assert cascade.main(words) == 0
    printed = capsys.readouterr().out
    assert f"-m cascade_tool --workdir {workdir / 'new' / 'train'} --score 1" in printed
    assert sys.executable not in printed
    assert not (workdir / "new").exists()


def test_a_step_is_to_do_running_begun_or_finished(workdir: Path) -> None:
    step = STEPS[0]
    assert state_of(step, workdir) == "to do"
    with claimed(workdir / step.name):
        (workdir / step.name / "checkpoint").touch()
        assert state_of(step, workdir) == "running"
    assert state_of(step, workdir) == "begun"
    assert run(STEPS[:1], workdir) == 0
    assert state_of(step, workdir) == "finished"


def test_a_step_that_a_killed_cascade_left_running_is_waited_for(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = threading.Event()

    def leftover() -> None:
        with claimed(workdir / "train"):
            held.set()
            while "waiting: " not in capsys.readouterr().out:
                time.sleep(0.01)
            assert not (workdir / "train" / "runs").exists()

    thread = threading.Thread(target=leftover)
    thread.start()
    held.wait()
    assert run(STEPS[:1], workdir) == 0
    thread.join()
    assert (workdir / "train" / "runs").read_text() == "x"


def test_a_signal_to_stop_is_passed_on_and_the_step_saves_itself(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir.parent / "patient_tool.py").write_text(PATIENT)
    found = signal.getsignal(signal.SIGTERM)
    stop = threading.Thread(target=terminate_when, args=(workdir / "patient" / "ready",))
    stop.start()
    status = run((CascadeStep("patient", "patient_tool"),), workdir)
    stop.join()
    assert status == 128 + signal.SIGTERM
    assert (workdir / "patient" / "saved").exists()
    assert "the same command goes on from here" in capsys.readouterr().err
    assert not (workdir / "cascade.md").exists()
    assert signal.getsignal(signal.SIGTERM) is found


def terminate_when(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_documented_command_lists_the_steps_of_the_small_cascade(tmp_path: Path) -> None:
    # As a process: a module run with -m is not the one that a config file imports.
    command = [sys.executable, "-m", "experiments.cascade", "--workdir", str(tmp_path), "--dry-run"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.stdout.split()[0] == "data"
    assert len(ended.stdout.splitlines()) == len(load_steps(cascade.DEFAULT_CONFIG, tmp_path))


def test_every_stage_of_the_small_cascade_begins_with_the_one_before(tmp_path: Path) -> None:
    steps = {step.name: step for step in load_steps(cascade.DEFAULT_CONFIG, tmp_path)}
    stages = (*cascade_small.SUPERVISED, *cascade_small.REINFORCED)
    for before, stage in itertools.pairwise(stages):
        assert f"--config.init_from={tmp_path / before}" in steps[stage].arguments
    last = f"--config.init_from={tmp_path / stages[-1]}"
    finals = [
        step for step in steps.values() if step.name.startswith(("none", "majority", "light"))
    ]
    assert len(finals) == 9
    for step in finals:
        assert last in step.arguments
    first = to_run_config(cascade_small.get_config("pretrain"))
    for name in stages:
        config = to_run_config(cascade_small.get_config(name))
        same = dataclasses.replace(config.model, rope_theta=first.model.rope_theta)
        assert architecture_differences(same, first.model) == []
    for name in cascade_small.REINFORCED:
        assert cascade_small.get_rl(name).engine is not None


def test_no_stage_of_the_small_cascade_trains_on_the_held_out_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade_data, "CODE_PROBLEMS", 1)
    assert cascade_data.main(["--workdir", str(tmp_path)]) == 0
    longest = {"Add": 4, "Sort": 6, "Reverse": 6}
    prompts = []
    for name in ("traces", "lessons"):
        rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").open()]
        prompts += [row["messages"][0]["content"] for row in rows]
    prompts += [json.loads(line)["problem"] for line in (tmp_path / "attempts.jsonl").open()]
    for name in cascade_small.REINFORCED:
        for environment in cascade_small.get_rl(name).environments():
            if environment.name.startswith("exercise/") and "+tail" not in environment.name:
                prompts.append(environment.sample(environment.hardest or 0, 0).prompt)
    for prompt in prompts:
        kind, *digits = prompt.split()
        if kind in longest:
            assert len(set(digits)) == len(digits) <= longest[kind]
    for family in cascade_data.HELD_OUT:
        for line in (tmp_path / "held_out" / f"{family}.jsonl").open():
            kind, *digits = json.loads(line)["problem"].split()
            assert len(set(digits)) < len(digits) or len(digits) > longest[kind]
