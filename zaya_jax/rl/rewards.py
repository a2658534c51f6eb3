"""From verified groups to advantages, in the order that matters.

verify -> repetition gate zeroes task rewards -> solve rates, p* -> length bonus -> advantages
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.advantages import ADVANTAGES
from zaya_jax.rl.advantages.groups import RewardGroups
from zaya_jax.rl.canaries import RepetitionConfig, is_repetitive, lowest_compression_ratio
from zaya_jax.rl.length_reward import BestSolveRates, LengthRewardConfig, length_bonus
from zaya_jax.rl.records import RolloutGroup


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """How rewards become advantages."""

    advantage: str = "maxrl"  # a name of `zaya_jax.rl.advantages`, or `package.module:function`
    length: LengthRewardConfig = dataclasses.field(default_factory=LengthRewardConfig)
    repetition: RepetitionConfig = dataclasses.field(default_factory=RepetitionConfig)


class GatedGroup(NamedTuple):
    """A group after the repetition gate."""

    group: RolloutGroup
    task: Float[np.ndarray, " size"]  # 0 where a rollout is flagged
    ratios: Float[np.ndarray, " size"]  # lowest compression ratios
    flagged: int


class ShapedGroup(NamedTuple):
    """A group with its length bonus."""

    gated: GatedGroup
    bonus: Float[np.ndarray, " size"]


def gate(group: RolloutGroup, config: RepetitionConfig) -> GatedGroup:
    """Zeroes the task reward of rollouts that repeat themselves."""
    ratios = np.array([lowest_compression_ratio(r.tokens, config) for r in group.rollouts])
    flags = np.array([is_repetitive(float(ratio), config) for ratio in ratios])
    return GatedGroup(group, np.where(flags, 0.0, group.rewards), ratios, int(flags.sum()))


def shape(
    groups: Sequence[GatedGroup], best: BestSolveRates, config: LengthRewardConfig, *, step: int
) -> list[ShapedGroup]:
    """Adds length bonuses; `best` takes the groups in first. No bonus while its coefficient is 0.

    Raises:
      RLError: for task rewards other than 0 and 1 while the coefficient is positive.
    """
    best.update((g.group.problem.source, float(g.task.mean())) for g in groups)
    coefficient = config.coefficient_at(step)
    return [
        ShapedGroup(
            g,
            length_bonus(
                g.task,
                g.group.lengths,
                best_solve_rate=best.best(g.group.problem.source),
                coefficient=coefficient,
                config=config,
            )
            if coefficient > 0
            else np.zeros(len(g.task)),
        )
        for g in groups
    ]


def advantages_of(groups: Sequence[ShapedGroup], name: str) -> Float[np.ndarray, "groups size"]:
    """Advantages of all rollouts of a batch.

    Raises:
      RLError: for groups of unequal size, and as `RewardGroups`.
    """
    rewards = RewardGroups(
        np.stack([group.gated.task for group in groups]),
        np.stack([group.bonus for group in groups]),
    )
    return ADVANTAGES.resolve(name)(rewards)
