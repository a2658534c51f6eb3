"""The order: verify, gate, solve rates, length bonus, advantages."""

from __future__ import annotations

import numpy as np

from tests.rl.groups import group
from zaya_jax.rl.canaries import RepetitionConfig
from zaya_jax.rl.length_reward import BestSolveRates, LengthRewardConfig
from zaya_jax.rl.records import RolloutGroup
from zaya_jax.rl.rewards import advantages_of, gate, shape

LENGTH = LengthRewardConfig(longest=1_000, length_tolerance=0, accuracy_tolerance=0.1)


def of_lengths(rewards: list[float], lengths: list[int]) -> RolloutGroup:
    made = [group([r], length=n) for r, n in zip(rewards, lengths, strict=True)]
    return RolloutGroup(made[0].problem, tuple(m.rollouts[0] for m in made), 0)


def test_a_repetitive_rollout_is_worth_nothing_before_solve_rates_are_taken() -> None:
    looping = np.zeros(1_024, np.int32)
    base = group([1.0, 1.0])
    flagged = group([1.0], length=1_024, tokens=looping).rollouts[0]
    gated = gate(RolloutGroup(base.problem, (*base.rollouts, flagged), 0), RepetitionConfig())
    assert gated.task.tolist() == [1.0, 1.0, 0.0]
    assert (gated.flagged, gated.ratios[0]) == (1, 1.0)
    best = BestSolveRates()
    shape([gated], best, LENGTH, step=0)
    assert best.best("sums") == 2 / 3


def test_shorter_answers_win_and_the_batch_counts_towards_its_own_maximum() -> None:
    gated = [gate(g, RepetitionConfig()) for g in (
        of_lengths([1, 1, 0, 0], [10, 505, 3, 3]),  # solve rate 1/2
        of_lengths([1, 1, 1, 1], [10, 505, 505, 505]),  # 1: mean of the source 3/4
    )]  # fmt: skip
    first, second = shape(gated, BestSolveRates(), LENGTH, step=0)
    assert first.bonus.tolist() == [0, 0, 0, 0]  # below p* - tolerance
    np.testing.assert_allclose(second.bonus, [0.5, 0, 0, 0])
    advantages = advantages_of([first, second], "maxrl")
    np.testing.assert_allclose(advantages, [[1, 1, -1, -1], [0.5, 0, 0, 0]])


def test_graded_rewards_pass_while_the_length_reward_is_off() -> None:
    off = LengthRewardConfig(coefficient=0.0)
    gated = gate(group([0.25, 0.5]), RepetitionConfig())
    [shaped] = shape([gated], BestSolveRates(), off, step=0)
    assert shaped.bonus.tolist() == [0, 0]
    assert advantages_of([shaped], "dr_grpo").tolist() == [[-0.125, 0.125]]


def test_the_bonus_ramps_up_with_the_step() -> None:
    ramp = LengthRewardConfig(longest=1_000, length_tolerance=0, ramp_steps=2)
    gated = gate(of_lengths([1, 1], [10, 1_000]), RepetitionConfig())
    values = [shape([gated], BestSolveRates(), ramp, step=s)[0].bonus[0] for s in (0, 1, 2)]
    assert values == [0.0, 0.25, 0.5]
