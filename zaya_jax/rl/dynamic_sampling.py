"""Online rejection of groups that teach nothing, with refill.

A group whose rollouts are all right or all wrong has no advantage. Such groups are dropped and
others drawn in their place until the batch is full (DAPO, arXiv 2503.14476). The filter may look at
the task reward, as published systems do, or at the shaped one: then a group that is all right still
counts where the length reward tells its members apart. Which one the report means is not said.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.errors import NothingToLearnError
from zaya_jax.rl.records import RolloutGroup


class GroupFilter(enum.StrEnum):
    """Which groups are trained on."""

    NONE = "none"  # all
    TASK = "task"  # those whose task rewards differ
    SHAPED = "shaped"  # those whose shaped rewards differ


def teaches(
    kind: GroupFilter, task: Float[np.ndarray, " size"], bonus: Float[np.ndarray, " size"]
) -> bool:
    """Whether a group passes the filter."""
    if kind is GroupFilter.NONE:
        return True
    rewards = task if kind is GroupFilter.TASK else task + bonus
    return bool(np.ptp(rewards) > 0)


def collect(
    wanted: int,
    draw: Callable[[int], list[RolloutGroup]],
    keep: Callable[[RolloutGroup], bool],
    *,
    most_rounds: int,
    fault: Callable[[], str] = str,
) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
    """Draws groups until `wanted` are kept; returns those, and all that were dropped.

    Args:
      wanted: groups of a batch.
      draw: makes so many new groups; it may return fewer, when some broke.
      keep: the filter.
      most_rounds: draws before giving up.
      fault: says why the last group that broke did.

    Raises:
      NothingToLearnError: when none was kept in all rounds.
    """
    kept: list[RolloutGroup] = []
    dropped: list[RolloutGroup] = []
    for _ in range(most_rounds):
        for group in draw(wanted - len(kept)):
            (kept if keep(group) else dropped).append(group)
        if len(kept) >= wanted:
            return kept[:wanted], dropped
    if not kept:
        drawn = f"all {len(dropped)} groups of {most_rounds} rounds"
        rates = [float(group.rewards.mean()) for group in dropped]
        raise NothingToLearnError(drawn, rates, fault())
    return kept, dropped
