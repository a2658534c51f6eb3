"""Advantages against hand-computed values and exact expectations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zaya_jax.rl.advantages import ADVANTAGES
from zaya_jax.rl.advantages.dr_grpo import dr_grpo
from zaya_jax.rl.advantages.groups import RewardGroups
from zaya_jax.rl.advantages.grpo import grpo
from zaya_jax.rl.advantages.maxrl import maxrl, maxrl_shaped_baseline
from zaya_jax.rl.advantages.rloo import rloo
from zaya_jax.rl.errors import RLError


def binary(correct: int, size: int = 16) -> RewardGroups:
    task = np.zeros((1, size))
    task[0, :correct] = 1.0
    return RewardGroups(task, np.zeros((1, size)))


@pytest.mark.parametrize(
    ("correct", "right", "wrong"),
    [(0, None, 0), (1, 15, -1), (2, 7, -1), (8, 1, -1), (15, 1 / 15, -1), (16, 0, None)],
)
def test_maxrl_divides_by_the_mean_reward(
    correct: int, right: float | None, wrong: float | None
) -> None:
    advantages = maxrl(binary(correct))[0]
    if right is not None:
        np.testing.assert_allclose(advantages[:correct], right, atol=1e-12)
    if wrong is not None:
        np.testing.assert_allclose(advantages[correct:], wrong, atol=1e-12)


def test_maxrl_is_unbiased_for_the_objective_of_order_one_less_than_the_group() -> None:
    # Policy: answer right with p = sigmoid(theta); scores are 1 - p and -p.
    p, size = 0.05, 16
    expected = 0.0
    for correct in range(size + 1):
        rewards = binary(correct)
        scores = np.where(rewards.task[0] == 1, 1 - p, -p)
        chance = math.comb(size, correct) * p**correct * (1 - p) ** (size - correct)
        expected += chance * float((maxrl(rewards)[0] * scores).mean())
    order = [sum((1 - p) ** (k - 1) for k in range(1, t + 1)) * p * (1 - p) for t in (15, 16)]
    assert expected == pytest.approx(0.509873, abs=1e-6)
    assert expected == pytest.approx(order[0], abs=1e-12)
    assert order[1] == pytest.approx(0.531880, abs=1e-6)


def test_the_bonus_enters_the_numerator_and_the_baseline_is_a_switch() -> None:
    rewards = binary(4)
    bonus = np.zeros((1, 16))
    bonus[0, :4] = [0.125, 0.1186, 0.0737, 0.0095]
    shaped = RewardGroups(rewards.task, bonus)
    np.testing.assert_allclose(maxrl(shaped)[0, :5], [3.5, 3.4744, 3.2948, 3.038, -1], atol=1e-4)
    with_shaped = maxrl_shaped_baseline(shaped)[0]
    np.testing.assert_allclose(with_shaped[:5], [3.42, 3.39, 3.21, 2.96, -1.08], atol=6e-3)
    assert with_shaped.sum() == pytest.approx(0, abs=1e-12)


def test_grpo_standardises_with_the_sample_deviation() -> None:
    rewards = RewardGroups(np.array([[1.0, 0.0, 0.0, 0.0]]), np.zeros((1, 4)))
    np.testing.assert_allclose(grpo(rewards)[0], [1.5, -0.5, -0.5, -0.5], atol=1e-5)
    equal = RewardGroups(np.full((1, 3), 0.1), np.zeros((1, 3)))
    assert grpo(equal).tolist() == [[0.0, 0.0, 0.0]]


def test_dr_grpo_centres_and_rloo_leaves_the_own_reward_out() -> None:
    rewards = RewardGroups(np.array([[1.0, 1.0, 0.0, 0.0, 0.0]]), np.zeros((1, 5)))
    np.testing.assert_allclose(dr_grpo(rewards)[0], [0.6, 0.6, -0.4, -0.4, -0.4], atol=1e-12)
    by_hand = [1 - 1 / 4, 1 - 1 / 4, -2 / 4, -2 / 4, -2 / 4]
    np.testing.assert_allclose(rloo(rewards)[0], by_hand, atol=1e-12)


@pytest.mark.parametrize("name", ADVANTAGES.names)
@pytest.mark.parametrize("correct", [0, 16])
def test_groups_that_are_all_right_or_all_wrong_have_no_advantage(name: str, correct: int) -> None:
    np.testing.assert_allclose(ADVANTAGES.resolve(name)(binary(correct)), 0, atol=1e-12)


@pytest.mark.parametrize("name", ADVANTAGES.names)
def test_groups_do_not_see_each_other(name: str) -> None:
    task = np.random.default_rng(0).integers(0, 2, (3, 8)).astype(float)
    function = ADVANTAGES.resolve(name)
    together = function(RewardGroups(task, np.zeros_like(task)))
    for row in range(3):
        alone = function(RewardGroups(task[row : row + 1], np.zeros((1, 8))))
        np.testing.assert_allclose(together[row : row + 1], alone, atol=1e-12)


@pytest.mark.parametrize(
    ("task", "bonus", "message"),
    [
        (np.ones((2, 1)), np.zeros((2, 1)), "groups of 1 rollout"),
        (np.array([[0.0, -0.5]]), np.zeros((1, 2)), "task reward -0.5"),
        (np.array([[0.0, np.nan]]), np.zeros((1, 2)), "task reward nan"),
        (np.zeros((1, 2)), np.array([[0.0, np.inf]]), "not finite"),
        (np.zeros((1, 2)), np.zeros((1, 3)), "must both be"),
    ],
)
def test_broken_groups_are_refused(task: np.ndarray, bonus: np.ndarray, message: str) -> None:
    with pytest.raises(RLError, match=message):
        RewardGroups(task, bonus)
