"""The length reward: published example, gates, running maximum."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.length_reward import BestSolveRates, LengthRewardConfig, length_bonus

CONFIG = LengthRewardConfig()


def bonus(correct: list[int], best: float = 0.0, config: LengthRewardConfig = CONFIG) -> np.ndarray:
    """Bonus of a group of 16 whose first members are right and of the given lengths."""
    task = np.zeros(16)
    task[: len(correct)] = 1
    lengths = np.array(correct + [5_000] * (16 - len(correct)))
    return length_bonus(task, lengths, best_solve_rate=best, coefficient=1.0, config=config)


def test_the_published_example() -> None:
    values = bonus([4_000, 6_000, 20_000, 40_000])
    np.testing.assert_allclose(values[:4], [0.125, 0.1186, 0.0737, 0.0095], atol=5e-5)
    assert np.all(values[4:] == 0)


def test_answers_within_the_tolerance_are_as_good_as_the_shortest() -> None:
    inside, outside = bonus([4_000, 5_000])[1], bonus([4_000, 5_001])[1]
    assert inside == 0.5 * 2 / 16
    assert outside == pytest.approx((0.5 - 1_001 / 77_920) * 2 / 16)


def test_a_single_correct_answer_gets_nothing() -> None:
    assert np.all(bonus([4_000]) == 0)


def test_nothing_is_shortened_while_the_solve_rate_is_below_its_best() -> None:
    config = LengthRewardConfig(accuracy_tolerance=0.125)
    assert np.all(bonus([4_000] * 4, best=0.375, config=config) == 0)  # 0.25 > 0.25 is false
    assert np.any(bonus([4_000] * 4, best=0.374, config=config) > 0)


def test_very_long_correct_answers_lose_at_most_half_of_the_solve_rate() -> None:
    values = bonus([4_000, 81_920, 200_000])
    np.testing.assert_allclose(values[1:3], -0.5 * 3 / 16)


def test_answers_beyond_the_longest_do_not_divide_by_zero() -> None:
    with np.errstate(all="raise"):
        values = bonus([81_920, 81_920, 90_000])
    np.testing.assert_allclose(values[:3], np.array([0.5, 0.5, -0.5]) * 3 / 16)


def test_the_running_maximum_is_kept_by_source_and_survives_a_checkpoint() -> None:
    rates = BestSolveRates()
    rates.update([("maths", 1.0), ("maths", 0.5), ("code", 0.25)])
    rates.update([("maths", 0.5), ("code", 0.5)])
    restored = BestSolveRates()
    restored.set_state(json.loads(json.dumps(rates.get_state())))
    assert (restored.best("maths"), restored.best("code"), restored.best("new")) == (0.75, 0.5, 0)


def test_the_coefficient_ramps_up() -> None:
    config = LengthRewardConfig(coefficient=0.8, ramp_steps=4)
    assert [config.coefficient_at(step) for step in (0, 1, 4, 9)] == [0.0, 0.2, 0.8, 0.8]
    assert LengthRewardConfig().coefficient_at(0) == 1.0


def test_graded_rewards_are_refused() -> None:
    with pytest.raises(RLError, match="0 or 1"):
        length_bonus(
            np.array([0.5, 1.0]),
            np.array([3, 4]),
            best_solve_rate=0.0,
            coefficient=1.0,
            config=CONFIG,
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"longest": 0},
        {"length_tolerance": -1},
        {"accuracy_tolerance": 0.0},
        {"coefficient": -1.0},
        {"ramp_steps": -1},
    ],
)
def test_impossible_settings_are_refused(fields: dict) -> None:
    with pytest.raises(RLError, match=next(iter(fields))):
        LengthRewardConfig(**fields)


def test_the_least_allowed_settings_are_allowed() -> None:
    least = {"longest": 1, "length_tolerance": 0, "coefficient": 0.0, "ramp_steps": 0}
    assert LengthRewardConfig(**least).coefficient_at(7) == 0.0
    assert LengthRewardConfig(ramp_steps=1).coefficient_at(0) == 0.0
    values = bonus([3, 4], config=LengthRewardConfig(length_tolerance=0, longest=11))
    np.testing.assert_allclose(values[:2], np.array([0.5, 0.5 - 1 / 8]) * 2 / 16)


def test_by_default_the_solve_rate_may_be_a_twentieth_below_its_best() -> None:
    assert np.any(bonus([4_000] * 4, best=0.29) > 0)
    assert np.all(bonus([4_000] * 4, best=0.31) == 0)
