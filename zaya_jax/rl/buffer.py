"""Finished groups between rollout workers and the trainer: bounded, whole groups, oldest out.

Workers put groups in and never wait: when the buffer is full the oldest group goes, all of it, for
a group that lost rollouts would have another mean. The trainer takes whole batches, oldest first,
and starts only when enough of them wait. A group older than the staleness bound is never given out.
Safe to use from several threads.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.records import RolloutGroup


@dataclasses.dataclass
class BufferCounts:
    """What happened to groups since the run began."""

    added: int = 0
    refused: int = 0  # incomplete, or a verifier failed
    evicted: int = 0  # the buffer was full
    stale: int = 0  # too old when the trainer came
    taken: int = 0


class GroupBuffer:
    """See the module."""

    def __init__(self, capacity: int, group_size: int, *, most_versions_behind: int) -> None:
        """An empty buffer.

        Args:
          capacity: most groups kept.
          group_size: rollouts of every group.
          most_versions_behind: largest difference between the trainer's version and the one a group
            started with; 0 is exactly on-policy.

        Raises:
          RLError: for a capacity below 1, groups below 2, or a negative bound.
        """
        if capacity < 1 or group_size < 2 or most_versions_behind < 0:
            raise RLError(
                f"buffer: capacity={capacity} (at least 1), group_size={group_size} (at least 2), "
                f"most_versions_behind={most_versions_behind} (at least 0)"
            )
        self.capacity, self.group_size = capacity, group_size
        self.most_versions_behind = most_versions_behind
        self._groups: collections.deque[RolloutGroup] = collections.deque()
        self._changed = threading.Condition()
        self._counts = BufferCounts()

    def __len__(self) -> int:
        with self._changed:
            return len(self._groups)

    @property
    def counts(self) -> BufferCounts:
        """A copy of the counts."""
        with self._changed:
            return dataclasses.replace(self._counts)

    def add(self, group: RolloutGroup) -> str | None:
        """Puts a group in; says why when it is refused, which is not an error."""
        problem = group.check(self.group_size)
        with self._changed:
            if problem is not None:
                self._counts.refused += 1
                return problem
            self._groups.append(group)
            self._counts.added += 1
            while len(self._groups) > self.capacity:
                self._groups.popleft()
                self._counts.evicted += 1
            self._changed.notify_all()
        return None

    def take(
        self, count: int, version: int, *, waiting: int | None = None, seconds: float | None = None
    ) -> list[RolloutGroup]:
        """The oldest `count` groups, dropping those that are too old for `version` for good.

        Args:
          count: groups of one batch.
          version: of the trainer's weights now.
          waiting: groups that must be there before any is taken; default `count`.
          seconds: longest wait; None waits for ever, 0 not at all.

        Raises:
          RLError: when `waiting` exceeds the capacity, so that nothing would ever be taken.
          TimeoutError: when the time is up.
        """
        needed = max(count, waiting or count)
        if needed > self.capacity:
            raise RLError(
                f"buffer: waiting for {needed} groups, but its capacity is {self.capacity}"
            )
        with self._changed:
            # Groups that began long ago may come in while this waits.
            ready = self._changed.wait_for(lambda: self._fresh(version) >= needed, seconds)
            if not ready:
                raise TimeoutError(f"{len(self._groups)} of {needed} groups after {seconds:g} s")
            self._counts.taken += count
            return [self._groups.popleft() for _ in range(count)]

    def _fresh(self, version: int) -> int:
        """How many groups are left when those that are too old are dropped."""
        oldest = version - self.most_versions_behind
        fresh = [group for group in self._groups if group.started >= oldest]
        self._counts.stale += len(self._groups) - len(fresh)
        self._groups = collections.deque(fresh)
        return len(fresh)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps; plain JSON values."""
        with self._changed:
            groups = [group.to_plain() for group in self._groups]
            return {"groups": groups, "counts": dataclasses.asdict(self._counts)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a checkpoint."""
        groups = [RolloutGroup.from_plain(plain) for plain in state["groups"]]
        with self._changed:
            self._groups = collections.deque(groups, maxlen=None)
            self._counts = BufferCounts(**state["counts"])
            self._changed.notify_all()
