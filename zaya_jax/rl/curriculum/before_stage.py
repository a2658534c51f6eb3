"""Where every environment of a stage starts: calibration with the policy that is to be trained.

A round asks one group of every environment, at the difficulty its calibration proposes, all groups
in one batch of the sampler. After each round all that is known is in a file: the same call with the
same file goes on behind the last whole round, and a finished file is a stored calibration.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zaya_jax.rl.curriculum.calibration import Calibration, CalibrationConfig
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.group_maker import Asked, GroupMaker
from zaya_jax.rl.sampler import Sampler

SOLVED_ABOVE = 0.5  # reward of a rollout that counts as solved


@dataclasses.dataclass(frozen=True)
class CalibrationPlan:
    """Calibration before a stage.

    Raises:
      RLError: on construction, without groups.
    """

    groups: int = 40  # of each environment; groups that broke count, so that this ends
    curve: CalibrationConfig = dataclasses.field(default_factory=CalibrationConfig)
    stored: str = ""  # file of an earlier calibration that is used as it is; "": calibrate now

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise RLError(f"calibration: groups={self.groups!r}: must be at least 1")


class Finding(NamedTuple):
    """What calibration says of one environment."""

    difficulty: int  # where the solve rate is nearest to the target
    solve_rate: float  # expected there
    groups: int  # seen, those that broke aside


def calibrate(
    plan: CalibrationPlan,
    maker: GroupMaker,
    sampler: Sampler,
    path: Path,
    *,
    seed: int,
    say: Callable[[str], Any] = lambda line: None,
) -> dict[str, Finding]:
    """Calibrates every environment of the curriculum, or reads what was found before.

    Args:
      plan: how.
      maker: problems and scores; its curriculum is told nothing.
      sampler: with the weights of the policy.
      path: state of a calibration under way, or finished.
      seed: of proposals, problems and samples.
      say: is told of every tenth round.

    Raises:
      RLError: when the file holds other environments, cannot be read, or `plan.stored` does not
        exist.
    """
    source = Path(plan.stored) if plan.stored else path
    calibrations, rounds = _start(plan, maker, seed), 0
    if source.exists():
        rounds = _load(source, calibrations)
    elif plan.stored:
        raise RLError(f"calibration: stored={plan.stored!r} does not exist; calibrate without it")
    while rounds < plan.groups and not plan.stored:
        _round(calibrations, maker, sampler, np.random.default_rng([seed, rounds]))
        rounds += 1
        _save(path, calibrations, rounds)
        if rounds % 10 == 0 or rounds == plan.groups:
            say(f"calibration: {rounds} of {plan.groups} groups of each environment")
    return {
        name: Finding(d := one.estimate(), one.solve_rate(d), one.groups)
        for name, one in calibrations.items()
    }


def _start(plan: CalibrationPlan, maker: GroupMaker, seed: int) -> dict[str, Calibration]:
    made = {}
    for i, (name, progress) in enumerate(maker.scheduler.progress.items()):
        top = plan.curve.hardest
        top = top if progress.hardest is None else min(top, progress.hardest)
        made[name] = Calibration(dataclasses.replace(plan.curve, hardest=top), seed + i)
    return made


def _round(
    calibrations: Mapping[str, Calibration],
    maker: GroupMaker,
    sampler: Sampler,
    random: np.random.Generator,
) -> None:
    """One group of every environment."""
    size = maker.config.group_size
    asked: list[Asked] = []
    for name, calibration in calibrations.items():
        difficulty, number = calibration.propose(), int(random.integers(2**31))
        try:
            asked.append(maker.ask(maker.environments[name].sample(difficulty, number)))
        except BrokenEnvironmentError:
            continue
    seeds = [int(number) for number in random.integers(2**62, size=len(asked) * size)]
    responses = sampler.sample([one.prompt for one in asked for _ in range(size)], seeds)
    for i, one in enumerate(asked):
        scores = maker.scores(one, responses[i * size : (i + 1) * size])
        if not any(score.broken for score in scores):
            solved = sum(score.reward > SOLVED_ABOVE for score in scores)
            calibrations[one.problem.source].observe(one.problem.difficulty, solved, size)


def _save(path: Path, calibrations: Mapping[str, Calibration], rounds: int) -> None:
    state = {name: one.get_state() for name, one in calibrations.items()}
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(json.dumps({"rounds": rounds, "environments": state}) + "\n")
    temporary.replace(path)


def _load(path: Path, calibrations: Mapping[str, Calibration]) -> int:
    """Rounds that the file has; the calibrations go on behind them."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        states, rounds = saved["environments"], int(saved["rounds"])
    except (ValueError, KeyError, TypeError) as error:
        raise RLError(f"{path} holds no calibration ({error}); remove it") from error
    if set(states) != set(calibrations):
        different = ", ".join(sorted(set(states) ^ set(calibrations)))
        raise RLError(f"{path} calibrates other environments: {different}; remove it")
    for name, calibration in calibrations.items():
        calibration.set_state(states[name])
    return rounds
