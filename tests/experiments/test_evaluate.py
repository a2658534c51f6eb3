"""The command: what it writes, how it goes on, how it refuses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import evaluate
from experiments.evaluation_config import resolve
from tests.evaluation.scripted_model import ScriptedModel
from zaya_jax.config import ConfigError
from zaya_jax.evaluation.settings import METHODS

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "experiments" / "configs" / "evaluation"
CONFIG = """
from experiments.evaluation_config import evaluation_config_dict
from zaya_jax.evaluation.settings import SamplingConfig, TaskConfig, TaskKind


def get_config(name=""):
    sampling = SamplingConfig(max_tokens=24)
    names = ("choices", "instructions")
    kinds = (TaskKind.MULTIPLE_CHOICE, TaskKind.INSTRUCTIONS)
    tasks = {n: TaskConfig(k, f"{n}.jsonl", 2, sampling=sampling) for n, k in zip(names, kinds)}
    config = evaluation_config_dict(tasks)
    config.data = DATA
    config.resamples = 100
    config.rsa.update(
        rounds=1, population=3, subset=2, thinking_budget=20, tail=6, answer_budget=9
    )
    return config
"""


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    path = tmp_path / "config.py"
    path.write_text(CONFIG.replace("DATA", repr(str(CONFIGS / "data"))))
    return ["--config", str(path), "--workdir", str(tmp_path / "run"), "--config.init_from=x"]


def ask(monkeypatch: pytest.MonkeyPatch, model: ScriptedModel) -> ScriptedModel:
    @contextlib.contextmanager
    def scripted(config: Any) -> Iterator[ScriptedModel]:
        yield model

    monkeypatch.setattr(evaluate, "_model", scripted)
    return model


def results(tmp_path: Path) -> dict[str, bytes]:
    names = ("results.json", "results.md", "report.html")
    return {name: (tmp_path / "run" / name).read_bytes() for name in names}


def test_results_are_written_printed_and_not_made_twice(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask(monkeypatch, ScriptedModel())
    assert evaluate.main(options) == 0
    table = capsys.readouterr().out
    assert "| choices " in table
    first = results(tmp_path)
    assert first["results.md"].decode() in table
    content = json.loads(first["results.json"])
    assert [own["task"] for own in content["tasks"]] == ["choices", "instructions"]
    assert content["settings"]["ttc"] == "none"
    ask(monkeypatch, ScriptedModel(stop_after=0))
    assert evaluate.main(options) == 0
    assert results(tmp_path) == first


def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask(monkeypatch, ScriptedModel())
    whole = [*options, "--config.concurrency=2"]
    assert evaluate.main(whole) == 0
    expected = results(tmp_path)
    (tmp_path / "run").rename(tmp_path / "whole")
    ask(monkeypatch, ScriptedModel(stop_after=9))
    assert evaluate.main(whole) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "run" / "results.json").exists()
    again = ask(monkeypatch, ScriptedModel())
    assert evaluate.main(whole) == 0
    assert again.calls < 22
    assert results(tmp_path) == expected


def test_markovian_rsa_takes_its_preset_with_the_changes(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(monkeypatch, ScriptedModel())
    assert evaluate.main([*options, "--ttc", "light"]) == 0
    content = json.loads(results(tmp_path)["results.json"])
    assert [own["answers"] for own in content["tasks"]] == [6, 6]
    assert list((tmp_path / "run" / "traces" / "choices").glob("*.jsonl"))


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("[!_]*.py")), ids=lambda path: path.name)
def test_every_config_resolves_and_states_its_command(file: Path) -> None:
    assert resolve(str(file), [("init_from", "x")]).tasks
    assert f"--config experiments/configs/evaluation/{file.name}" in file.read_text()


def test_the_published_protocol_is_in_the_config() -> None:
    tasks = resolve(str(CONFIGS / "zaya1_8b.py"), [("init_from", "x")]).tasks
    assert (tasks["aime26"].samples, tasks["gpqa_diamond"].samples) == (64, 16)
    assert tasks["livecodebench_v6"].samples == 16
    code, maths = tasks["livecodebench_v6"].sampling, tasks["aime26"].sampling
    assert (code.temperature, code.top_p, code.top_k) == (0.6, 0.95, 20)
    assert (maths.temperature, maths.top_p, maths.top_k) == (1.0, 0.95, 0)
    assert METHODS == ("none", "majority", "light", "default", "headline", "apex_xhigh")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--ttc", "much"], "--ttc"),
        (["--config.tasks.choice.samples=2"], "did you mean --config.tasks.choices.samples"),
        (["--config.tasks.choices.samples=0"], "samples=0"),
        (["--config.tasks.choices.sampling.top_p=2"], "tasks.choices: top_p=2"),
        (["--config.url=http://127.0.0.1:1/v1"], "one of the two"),
        (["--config", "experiments/configs/demo.py"], "says no tasks"),
        (["--config.confidence=95"], "confidence=95"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    options: list[str], more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        evaluate.main([*options, *more])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_missing_data_is_named(options: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"choices\.jsonl does not exist"):
        evaluate.main([*options, f"--config.data={tmp_path}"])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_server_and_the_engine_behind_it_give_the_same_table(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.inference.models import text_engine
    from tests.inference.test_server import BYTES, serving
    from zaya_jax.inference.server.app import ServerSettings

    monkeypatch.setattr(evaluate, "load_engine", lambda *arguments: (text_engine(), BYTES))
    assert evaluate.main(options) == 0
    local = json.loads(results(tmp_path)["results.json"])["tasks"]
    (tmp_path / "run").rename(tmp_path / "local")
    with serving(ServerSettings("tiny", None)) as (url, _):
        asked = [*options[:-1], f"--config.url={url}/v1", "--config.model=tiny"]
        assert evaluate.main(asked) == 0
        assert json.loads(results(tmp_path)["results.json"])["tasks"] == local
        # Its candidates come over HTTP too. Without aggregation: a byte is a token here, and no
        # aggregation prompt fits the context of the tiny model.
        rsa = [*asked, "--workdir", str(tmp_path / "rsa"), "--ttc", "light"]
        small = ["--config.tasks.choices.problems=1", "--config.tasks.instructions.problems=1"]
        assert evaluate.main([*rsa, *small, "--config.rsa.rounds=0"]) == 0
