"""Filtering with refill, and a clear end when everything is filtered."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rl.groups import group
from zaya_jax.rl.dynamic_sampling import GroupFilter, collect, teaches
from zaya_jax.rl.errors import NothingToLearnError
from zaya_jax.rl.records import RolloutGroup


@pytest.mark.parametrize(
    ("kind", "task", "bonus", "kept"),
    [
        (GroupFilter.TASK, [1, 1], [0.5, 0.1], False),
        (GroupFilter.SHAPED, [1, 1], [0.5, 0.1], True),
        (GroupFilter.SHAPED, [0, 0], [0, 0], False),
        (GroupFilter.TASK, [1, 0], [0, 0], True),
        (GroupFilter.NONE, [0, 0], [0, 0], True),
    ],
)
def test_the_filter_looks_at_one_reward(
    kind: GroupFilter, task: list, bonus: list, kept: bool
) -> None:
    assert teaches(kind, np.array(task, float), np.array(bonus, float)) is kept


def keep(one: RolloutGroup) -> bool:
    return bool(np.ptp(one.rewards) > 0)


def test_dropped_groups_are_replaced() -> None:
    supply = iter([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    asked = []

    def draw(count: int) -> list[RolloutGroup]:
        asked.append(count)
        return [group(next(supply)) for _ in range(count)]

    kept, dropped = collect(2, draw, keep, most_rounds=5)
    assert asked == [2, 1, 1]
    assert (len(kept), len(dropped)) == (2, 2)


def test_fewer_groups_than_wanted_are_better_than_none() -> None:
    supply = iter([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    kept, _ = collect(2, lambda n: [group(next(supply)) for _ in range(n)], keep, most_rounds=2)
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("made", "is_solved"), [([1.0, 1.0], True), ([0.0, 0.0], False), (None, False)]
)
def test_a_stage_with_nothing_to_teach_says_so_and_whether_all_is_solved(
    made: list | None, is_solved: bool
) -> None:
    def draw(count: int) -> list[RolloutGroup]:
        return [group(made) for _ in range(count)] if made else []

    with pytest.raises(
        NothingToLearnError, match=r"groups of 3 rounds were filtered out .*too easy or too hard"
    ) as caught:
        collect(2, draw, keep, most_rounds=3)
    assert caught.value.is_solved is is_solved
