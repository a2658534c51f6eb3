"""The buffer: bounded, whole groups, oldest out, nothing too old, nothing broken."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest

from tests.rl.groups import group
from zaya_jax.rl.buffer import BufferCounts, GroupBuffer
from zaya_jax.rl.errors import RLError


def buffer(capacity: int = 4, behind: int = 2) -> GroupBuffer:
    return GroupBuffer(capacity, 2, most_versions_behind=behind)


def test_groups_come_out_whole_and_oldest_first() -> None:
    made = buffer()
    groups = [group([1.0, 0.0], started=v) for v in range(3)]
    for one in groups:
        assert made.add(one) is None
    assert made.take(2, version=2) == groups[:2]
    assert len(made) == 1


def test_a_full_buffer_evicts_its_oldest_group() -> None:
    made = buffer(capacity=2)
    groups = [group([1.0, 0.0], started=v) for v in range(5)]
    for one in groups:
        made.add(one)
    assert made.take(2, version=4) == groups[3:]
    assert made.counts == BufferCounts(added=5, evicted=3, taken=2)


def test_groups_beyond_the_staleness_bound_are_never_given_out() -> None:
    made = buffer()
    for version in (0, 1, 2, 3):
        made.add(group([1.0, 0.0], started=version))
    assert [g.started for g in made.take(2, version=4)] == [2, 3]
    assert made.counts.stale == 2


def test_a_bound_of_zero_is_on_policy() -> None:
    made = buffer(behind=0)
    made.add(group([1.0, 0.0], started=4))
    with pytest.raises(TimeoutError, match="0 of 1 groups"):
        made.take(1, version=5, seconds=0.0)


def test_broken_and_incomplete_groups_are_refused_and_counted() -> None:
    made = buffer()
    assert made.add(group([1.0])) == "1 of 2 rollouts"
    assert "hung" in str(made.add(group([1.0, 0.0], broken=True, reason="hung")))
    assert (len(made), made.counts.refused) == (0, 2)


def test_the_trainer_waits_for_more_than_it_takes() -> None:
    made = buffer()
    made.add(group([1.0, 0.0]))
    with pytest.raises(TimeoutError, match="1 of 2 groups"):
        made.take(1, version=0, waiting=2, seconds=0.05)
    taken: list = []
    trainer = threading.Thread(
        target=lambda: taken.extend(made.take(1, version=0, waiting=2, seconds=30.0))
    )
    trainer.start()
    made.add(group([0.0, 1.0]))
    trainer.join(30)
    assert len(taken) == 1
    assert len(made) == 1


def test_waiting_for_more_than_fits_is_refused_at_once() -> None:
    with pytest.raises(RLError, match="waiting for 5 groups, but its capacity is 4"):
        buffer().take(1, version=0, waiting=5)


def test_a_restart_changes_nothing() -> None:
    made = buffer(capacity=2)
    for version in range(3):
        made.add(group([1.0, 0.0], started=version))
    restored = buffer(capacity=2)
    restored.set_state(json.loads(json.dumps(made.get_state())))
    assert dataclasses.asdict(restored.counts) == dataclasses.asdict(made.counts)
    assert [g.started for g in restored.take(2, version=2)] == [1, 2]


@pytest.mark.parametrize(("capacity", "size", "behind"), [(0, 2, 0), (1, 1, 0), (1, 2, -1)])
def test_impossible_buffers_are_refused(capacity: int, size: int, behind: int) -> None:
    with pytest.raises(RLError, match=r"buffer: capacity="):
        GroupBuffer(capacity, size, most_versions_behind=behind)
