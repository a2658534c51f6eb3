"""The online scheduler: the rule, tracking, sampling, restart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from zaya_jax.rl.curriculum.scheduler import OnlineScheduler
from zaya_jax.rl.errors import RLError


def scheduler(difficulty: int = 5, hardest: int | None = 10) -> OnlineScheduler:
    return OnlineScheduler({"a": (difficulty, hardest)}, seed=0)


@pytest.mark.parametrize(
    ("made_at", "mean", "after"),
    [
        (5, 0.75, 6),
        (5, 0.7, 5),  # the bound is strict
        (5, 0.0625, 5),
        (5, 0.0, 4),
        (4, 1.0, 5),  # made before the last move: does not count
        (6, 0.0, 5),
    ],
)
def test_one_group_moves_the_difficulty_by_one_or_not_at_all(
    made_at: int, mean: float, after: int
) -> None:
    made = scheduler()
    made.observe("a", made_at, mean)
    assert made.progress["a"].difficulty == after
    assert made.progress["a"].groups == 1


def test_difficulty_stays_in_its_range() -> None:
    bottom, top, endless = scheduler(0), scheduler(10), scheduler(10, None)
    bottom.observe("a", 0, 0.0)
    top.observe("a", 10, 1.0)
    endless.observe("a", 10, 1.0)
    found = [s.progress["a"].difficulty for s in (bottom, top, endless)]
    assert found == [0, 10, 11]


def test_groups_in_flight_move_it_once() -> None:
    made = scheduler()
    for _ in range(8):  # all drawn while it stood at 5
        made.observe("a", 5, 1.0)
    assert made.progress["a"].difficulty == 6


SKILLS: dict[str, Callable[[int], float]] = {
    "growing": lambda step: 4 + 0.05 * step,
    "falling": lambda step: 34 - 0.05 * step,
    "swinging": lambda step: 15 + 8 * math.sin(step / 60),
}


@pytest.mark.parametrize("kind", SKILLS)
def test_a_moving_skill_is_tracked(kind: str) -> None:
    skill, gaps = SKILLS[kind], []
    for seed in range(4):
        random = np.random.default_rng(seed)
        made = OnlineScheduler({"a": (round(skill(0)), None)}, seed=seed)
        for step in range(600):
            if step == 300:  # a restart in the middle
                saved = json.loads(json.dumps(made.get_state()))
                made = OnlineScheduler({"a": (0, None)}, seed=99)
                made.set_state(saved)
            name, difficulty, _ = made.next()
            rate = 1 / (1 + np.exp(np.clip(difficulty - skill(step), -30, 30)))
            made.observe(name, difficulty, float(random.binomial(16, rate)) / 16)
            gaps.append(difficulty - skill(step))
    # Between the levels where groups exceed 0.7 and where they fail whole.
    assert min(gaps) > -2.5
    assert max(gaps) < 4
    assert -1 < np.mean(gaps) < 2


def test_environments_that_lag_are_drawn_more() -> None:
    made = OnlineScheduler({"quick": (0, None), "slow": (0, None)}, seed=1)
    for _ in range(50):
        made.observe("quick", 3, 0.5)
    names = [made.next()[0] for _ in range(200)]
    assert names.count("slow") > 180


def test_a_restart_changes_nothing() -> None:
    starts = {"a": (2, 9), "b": (0, None)}
    whole = OnlineScheduler(starts, seed=4)
    for _ in range(5):
        name, difficulty, _ = whole.next()
        whole.observe(name, difficulty, 1.0)
    restored = OnlineScheduler(starts, seed=7)
    restored.set_state(json.loads(json.dumps(whole.get_state())))
    assert [whole.next() for _ in range(9)] == [restored.next() for _ in range(9)]
    assert whole.progress == restored.progress


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(RLError, match="at least 1 environment"):
        OnlineScheduler({}, seed=0)
    with pytest.raises(RLError, match=r"starts at difficulty 11, outside 0\.\.10"):
        scheduler(11)
    with pytest.raises(RLError, match="no environment 'z'"):
        scheduler().observe("z", 0, 1.0)
    made = OnlineScheduler({"a": (0, 1), "b": (0, 1)}, seed=0)
    with pytest.raises(RLError, match="other environments: b"):
        scheduler(0).set_state(made.get_state())


def test_groups_come_in_the_ratio_of_their_shares() -> None:
    shares = {"sums": 6.0, "code": 3.0}
    starts: dict[str, tuple[int, int | None]] = {"sums": (0, 0), "code": (0, 0), "puzzles": (0, 0)}
    scheduler = OnlineScheduler(starts, seed=0, shares=shares)
    counts = dict.fromkeys(starts, 0)
    for _ in range(1_000):
        name, difficulty, _ = scheduler.next()
        counts[name] += 1
        scheduler.observe(name, difficulty, 0.5)
    assert counts["sums"] == pytest.approx(600, abs=20)
    assert counts["code"] == pytest.approx(300, abs=20)


@pytest.mark.parametrize("shares", [{"sums": 0.0}, {"chess": 1.0}])
def test_a_share_of_nothing_is_refused(shares: dict[str, float]) -> None:
    with pytest.raises(RLError, match="curriculum: share"):
        OnlineScheduler({"sums": (0, 0)}, seed=0, shares=shares)
