"""Calibration before a stage: it finds the edge of a policy's ability, and is resumed or reused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zaya_jax.rl.curriculum.before_stage import CalibrationPlan, calibrate
from zaya_jax.rl.curriculum.scheduler import OnlineScheduler
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Problem, Score
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.group_maker import GroupMaker
from zaya_jax.rl.prompts import PromptStyle
from zaya_jax.rl.sampler import Sampled
from zaya_jax.rl.stage_config import StageConfig

SKILLS = {"easy": 30.0, "middling": 12.0, "hard": -20.0}
PLAN = CalibrationPlan(groups=40)


class Ladder:
    """The prompt says how hard it is for whom; the answer says whether it was solved."""

    hardest = None

    def __init__(self, name: str) -> None:
        self.name = name

    def sample(self, difficulty: int, seed: int) -> Problem:
        if self.name == "hard" and seed % 7 == 0:
            raise BrokenEnvironmentError("none today")
        return Problem(self.name, difficulty, seed, f"{self.name} {difficulty}", {})

    def score(self, problem: Problem, answer: str) -> Score:
        return Score(float(answer == "1"), "")


class Student:
    """Solves a problem of difficulty d with probability sigmoid(skill - d)."""

    version = 0

    def __init__(self, fails_after: int | None = None) -> None:
        self.left = fails_after

    def load_weights(self, variables: Any) -> int:
        return 0

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Sampled]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        return [self._answer(p, s) for p, s in zip(prompts, seeds, strict=True)]

    def _answer(self, prompt: Sequence[int], seed: int) -> Sampled:
        name, difficulty = "".join(map(chr, prompt)).split()
        rate = 1 / (1 + np.exp(int(difficulty) - SKILLS[name]))
        solved = np.random.default_rng(seed).random() < rate
        empty = np.zeros(0, np.int32)
        return Sampled(np.array([ord("1" if solved else "0")]), empty, empty, empty, False)


def maker() -> GroupMaker:
    return GroupMaker(
        StageConfig(prompts=1, group_size=8, prompt=PromptStyle.PLAIN),
        [Ladder(name) for name in SKILLS],
        OnlineScheduler({name: (0, None if name != "middling" else 20) for name in SKILLS}, seed=0),
        encode=lambda text: [ord(c) for c in text],
        decode=lambda ids: "".join(map(chr, ids)),
    )


def test_environments_start_where_half_is_solved(tmp_path: Path) -> None:
    made, said = maker(), list[str]()
    found = calibrate(PLAN, made, Student(), tmp_path / "c.json", seed=0, say=said.append)
    assert abs(found["middling"].difficulty - 12) <= 1
    assert abs(found["easy"].difficulty - 30) <= 1
    assert found["hard"].difficulty == 0
    assert found["hard"].solve_rate < 0.1
    assert found["hard"].groups < found["easy"].groups == 40  # some could not be made
    assert said[-1] == "calibration: 40 of 40 groups of each environment"
    assert all(p.groups == 0 for p in made.scheduler.progress.values())
    made.scheduler.start_at({name: one.difficulty for name, one in found.items()})
    name, difficulty, _ = made.scheduler.next()
    assert difficulty == found[name].difficulty


def test_an_interrupted_calibration_goes_on_and_a_finished_one_is_read(tmp_path: Path) -> None:
    plan = CalibrationPlan(groups=12)
    whole = calibrate(plan, maker(), Student(), tmp_path / "whole.json", seed=3)
    with pytest.raises(KeyboardInterrupt):
        calibrate(plan, maker(), Student(fails_after=5), tmp_path / "parts.json", seed=3)
    assert calibrate(plan, maker(), Student(), tmp_path / "parts.json", seed=3) == whole
    asleep = Student(fails_after=0)
    assert calibrate(plan, maker(), asleep, tmp_path / "parts.json", seed=3) == whole
    stored = dataclasses.replace(plan, groups=40, stored=str(tmp_path / "whole.json"))
    assert calibrate(stored, maker(), asleep, tmp_path / "unused.json", seed=3) == whole
    assert not (tmp_path / "unused.json").exists()


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with pytest.raises(RLError, match="stored='nowhere' does not exist"):
        calibrate(CalibrationPlan(stored="nowhere"), maker(), Student(), path, seed=0)
    path.write_text("{}")
    with pytest.raises(RLError, match="holds no calibration"):
        calibrate(PLAN, maker(), Student(), path, seed=0)
    path.write_text('{"rounds": 1, "environments": {"other": {}}}')
    with pytest.raises(RLError, match="other environments: easy, hard, middling, other; remove it"):
        calibrate(PLAN, maker(), Student(), path, seed=0)
    with pytest.raises(RLError, match="'middling' has no difficulty 21"):
        maker().scheduler.start_at({"middling": 21})
