"""Calibration on synthetic students whose skill is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zaya_jax.rl.curriculum.calibration import Calibration, CalibrationConfig
from zaya_jax.rl.errors import RLError

HARDEST, GROUP = 40, 16


def student(middle: float, slope: float, difficulty: int) -> float:
    return 1.0 / (1.0 + np.exp(np.clip((difficulty - middle) / slope, -30, 30)))


def calibrated(middle: float, slope: float, seed: int, groups: int = 40) -> Calibration:
    random = np.random.default_rng(seed + 10_000)
    calibration = Calibration(CalibrationConfig(hardest=HARDEST), seed)
    for _ in range(groups):
        difficulty = calibration.propose()
        assert 0 <= difficulty <= HARDEST
        solved = random.binomial(GROUP, student(middle, slope, difficulty))
        calibration.observe(difficulty, int(solved), GROUP)
    return calibration


def within_one_level(seed: int) -> bool:
    """One environment; every tenth is never solved and every tenth always."""
    random = np.random.default_rng(seed)
    middle = float(random.uniform(0, HARDEST))
    middle = {0: -100.0, 5: 1_000.0}.get(seed % 10, middle)
    slope = float(np.exp(random.uniform(np.log(0.3), np.log(4.0))))
    wanted = np.clip(middle, 0, HARDEST)
    return bool(abs(calibrated(middle, slope, seed).estimate() - wanted) <= 1)


@pytest.mark.parametrize("environments", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_the_half_solved_level_is_found_in_forty_groups_for_95_percent(environments: int) -> None:
    hits = sum(within_one_level(seed) for seed in range(environments))
    assert hits >= 0.95 * environments, hits


@pytest.mark.parametrize("seed", range(5))
def test_what_is_never_or_always_solved_ends_at_the_edge(seed: int) -> None:
    assert calibrated(-100.0, 0.5, seed).estimate() == 0
    assert calibrated(1_000.0, 0.5, seed).estimate() == HARDEST


def test_the_expected_solve_rate_is_the_students() -> None:
    calibration = calibrated(20.0, 2.0, 1, groups=60)
    for difficulty in (17, 20, 23):
        assert calibration.solve_rate(difficulty) == pytest.approx(
            student(20.0, 2.0, difficulty), abs=0.12
        )


def test_a_restart_changes_nothing() -> None:
    whole, first = calibrated(12.0, 1.0, 3, groups=10), calibrated(12.0, 1.0, 3, groups=10)
    restored = Calibration(CalibrationConfig(hardest=HARDEST), seed=99)
    restored.set_state(json.loads(json.dumps(first.get_state())))
    for solved in (8, 0, 16, 8, 8):
        assert whole.propose() == restored.propose()
        for calibration in (whole, restored):
            calibration.observe(12, solved, GROUP)
    assert whole.get_state() == restored.get_state()


def test_an_environment_with_one_level_stays_there() -> None:
    calibration = Calibration(CalibrationConfig(hardest=0), seed=0)
    calibration.observe(calibration.propose(), 3, GROUP)
    assert (calibration.propose(), calibration.estimate()) == (0, 0)


@pytest.mark.parametrize(("solved", "size"), [(17, 16), (-1, 16), (0, 0)])
def test_impossible_groups_are_refused(solved: int, size: int) -> None:
    with pytest.raises(RLError, match="solved of"):
        Calibration(CalibrationConfig(), 0).observe(1, solved, size)


@pytest.mark.parametrize(
    "fields",
    [{"hardest": -1}, {"curves": 1}, {"slope_range": (0.0, 1.0)}, {"target_spread": 0.5}],
)
def test_impossible_settings_are_refused(fields: dict) -> None:
    with pytest.raises(RLError, match="out of range"):
        CalibrationConfig(**fields)
