"""Problems that a policy always or never solves are dropped, in passes that can be interrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import refilter as command
from tests.rl.test_command import tiny
from zaya_jax.config import ConfigError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Problem, Score
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.prompts import PromptStyle
from zaya_jax.rl.refilter import FilterPass, RefilterPlan
from zaya_jax.rl.sampler import Sampled
from zaya_jax.rl.setup import RLSetup
from zaya_jax.training.settings import RunConfig

FIRST = FilterPass(PromptStyle.PLAIN, 2, samples=4, most_solved=0.75)
SECOND = FilterPass(PromptStyle.PLAIN, 4, samples=4, least_solved=0.25, most_solved=0.75)
PLAN = RefilterPlan(problems=8, difficulties=3, passes=(FIRST, SECOND), batch=5)


class Counting:
    """Problem `seed` of difficulty d is solved `seed` times out of 4 where d is even."""

    hardest = 5

    def __init__(self, name: str = "counting") -> None:
        self.name = name

    def sample(self, difficulty: int, seed: int) -> Problem:
        if seed == 7:
            raise BrokenEnvironmentError("none")
        share = seed % 6 if difficulty != 1 and self.name == "counting" else 0
        prompt = f"{share} {difficulty}"
        return Problem(self.name, difficulty, seed, prompt, {})

    def score(self, problem: Problem, answer: str) -> Score:
        if problem.prompt.startswith("5"):
            raise BrokenEnvironmentError("the verifier fails")
        return Score(float(answer == "1"), f"{problem.difficulty}")


class Scripted:
    """Solves as many of four responses as the prompt says."""

    version = 0

    def __init__(self, left: int = 1_000) -> None:
        self.left, self.asked = left, 0

    def load_weights(self, variables: Any) -> int:
        return 0

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Sampled]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        self.asked += len(prompts)
        assert len(set(seeds)) == len(seeds)
        decode, none = load_tokenizer("bytes").decode, np.zeros(0, np.int32)
        shares = [int(decode(list(prompt)[1:]).split()[0]) for prompt in prompts]
        texts = ["1" if i % 4 < share else "0" for i, share in enumerate(shares)]
        ids = [load_tokenizer("bytes").encode(text) for text in texts]
        return [Sampled(np.array(one), none, none, none, False) for one in ids]


def use(monkeypatch: pytest.MonkeyPatch, sampler: Scripted) -> tuple[RunConfig, RLSetup]:
    monkeypatch.setattr(command, "make_sampler", lambda *arguments: sampler)
    config, setup = tiny(2)
    config = dataclasses.replace(config, init_from="the stage before")
    both = (Counting(), Counting("hopeless"))
    return config, dataclasses.replace(
        setup, refilter=PLAN, environments=lambda: both, shares={"counting": 2.0, "hopeless": 1.0}
    )


def test_what_is_solved_now_and_then_is_kept_and_can_be_learnt_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sampler = Scripted()
    config, setup = use(monkeypatch, sampler)
    left = command.refiltered(config, setup, {}, tmp_path)
    [environment] = left.environments()
    assert (environment.name, environment.hardest) == ("counting", 1)  # none left at difficulty 1
    assert dict(left.shares) == {"counting": 2.0}
    prompts = {environment.sample(level, seed).prompt for level in (0, 1) for seed in range(9)}
    assert prompts == {f"{share} {d}" for share in (1, 2, 3) for d in (0, 2)}
    problem = environment.sample(1, 4)
    assert problem.difficulty == 1
    assert environment.score(problem, "1") == Score(1.0, "2")  # the inner difficulty
    printed = capsys.readouterr().out
    assert "pass 1 (plain, at most 2 tokens) kept 12 of 16 problems" in printed
    assert "pass 2 (plain, at most 4 tokens) kept 6 of 12 problems" in printed
    assert "nothing of hopeless is left" in printed


def test_an_interrupted_filter_goes_on_and_a_finished_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Scripted()
    config, setup = use(monkeypatch, whole)
    command.refiltered(config, setup, {}, tmp_path / "whole")
    early = Scripted(left=5)
    use(monkeypatch, early)
    with pytest.raises(KeyboardInterrupt):
        command.refiltered(config, setup, {}, tmp_path / "parts")
    torn = tmp_path / "parts" / "filter_2.jsonl"
    torn.write_text(torn.read_text() + '{"source": "coun')
    late = Scripted()
    use(monkeypatch, late)
    command.refiltered(config, setup, {}, tmp_path / "parts")
    for name in ("problems.jsonl", "filter_1.jsonl", "filter_2.jsonl"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert early.asked + late.asked == whole.asked
    use(monkeypatch, Scripted(left=0))
    assert command.refiltered(config, setup, {}, tmp_path / "parts").environments()


def test_what_cannot_be_filtered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, setup = use(monkeypatch, Scripted())
    with pytest.raises(ConfigError, match=r"set config\.init_from"):
        command.refiltered(dataclasses.replace(config, init_from=""), setup, {}, tmp_path)
    hopeless = dataclasses.replace(setup, environments=lambda: (Counting("hopeless"),))
    with pytest.raises(RLError, match=r"no problem is left in .*: all are too easy or too hard"):
        command.refiltered(config, hopeless, {}, tmp_path)
    (tmp_path / "problems.jsonl").write_text("{")
    with pytest.raises(RLError, match="is damaged"):
        command.refiltered(config, setup, {}, tmp_path)
    with pytest.raises(RLError, match=r"most_solved=0\.2: must rise within 0 to 1"):
        FilterPass(PromptStyle.PLAIN, 1, least_solved=0.5, most_solved=0.2)
    with pytest.raises(ConfigError, match="this stage has no refilter"):
        command.main(["--workdir", str(tmp_path)])
