"""One stage with rollouts and training at the same time (PipelineRL, arXiv 2509.19128).

    workers: draw problems -> sample -> score -> filter ->  buffer of whole groups
    trainer:                        buffer -> learn -> every k updates: weights to all workers

Workers never wait for the trainer, unless the buffer is told to make them. What bounds staleness:
the trainer waits while weights go in, so that a worker's weights are at most k updates old, and the
buffer gives out no group that began more than `most_updates_behind` updates ago. The order of
events follows the clock: a resumed run goes on with the same buffer and curriculum, but groups that
were under way are drawn anew.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.buffer import GroupBuffer
from zaya_jax.rl.errors import NothingToLearnError, RLError
from zaya_jax.rl.group_maker import GroupMaker
from zaya_jax.rl.learner import Learner
from zaya_jax.rl.ray_engine import ActorResources
from zaya_jax.rl.records import RolloutGroup
from zaya_jax.rl.rollout_worker import RolloutEngine, RolloutWorker
from zaya_jax.rl.sampler import Sampler
from zaya_jax.rl.throughput import throughput
from zaya_jax.rl.trainer import PolicyState

_LOOK_SECONDS = 0.1  # between two looks at the workers while the trainer waits


class WhenFull(enum.StrEnum):
    """What happens when workers are faster than the trainer."""

    EVICT = "evict"  # the oldest group goes: workers have devices of their own
    WAIT = "wait"  # workers begin no group: they share their processors with the trainer


class WorkerPlace(enum.StrEnum):
    """Where engines run."""

    THREAD = "thread"  # in this process
    RAY = "ray"  # each in a Ray actor, on this machine or a cluster
    SERVER = "server"  # each behind an HTTP server that was started before


@dataclasses.dataclass(frozen=True)
class PipelineConfig:
    """Settings of the pipeline.

    Raises:
      RLError: on construction, when a number is too small, or the buffer for what is waited for.
    """

    workers: int = 1  # each with an engine of its own
    place: WorkerPlace = WorkerPlace.THREAD  # where those engines run
    own_devices: bool = False  # threads only: the last devices are the workers', not the trainer's
    resources: ActorResources = dataclasses.field(default_factory=ActorResources)  # Ray only
    score_in_actors: bool = False  # Ray only: each actor makes the environments and scores
    servers: tuple[str, ...] = ()  # servers only: the URL of each worker's
    exports: str = ""  # servers only: folder for weights, which they see under the same name
    groups_in_flight: int = 32  # of each worker
    updates_per_sync: int = 2  # k: updates between two syncs of the weights
    batches_waiting: int = 2  # batches that must be complete after a sync before training goes on
    buffer_batches: int = 4  # most batches kept
    most_updates_behind: int = 8  # oldest weights that may have begun a group that is trained on
    when_full: WhenFull = WhenFull.EVICT
    patience_seconds: float = 3_600.0  # without any finished group before the run stops

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and not value > 0:
                raise RLError(f"pipeline: {field.name}={value!r}: must be positive")
        if self.own_devices and self.place is not WorkerPlace.THREAD:
            raise RLError(
                f"pipeline: own_devices is for threads; place={self.place} has others anyway"
            )
        if self.place is WorkerPlace.SERVER and (
            len(self.servers) != self.workers or not self.exports
        ):
            raise RLError(
                f"pipeline: servers={self.servers!r} for workers={self.workers}, "
                f"exports={self.exports!r}: each worker needs a URL, and all a folder for weights"
            )
        if self.buffer_batches < self.batches_waiting:
            raise RLError(
                f"pipeline: buffer_batches={self.buffer_batches} is less than "
                f"batches_waiting={self.batches_waiting}: training would never begin"
            )


class PipelineStage:
    """The same methods as `zaya_jax.rl.stage.Stage`. Workers start with the first step."""

    def __init__(
        self,
        config: PipelineConfig,
        maker: GroupMaker,
        learner: Learner,
        engines: Sequence[RolloutEngine],
        sampler: Sampler,
    ) -> None:
        """Puts the parts together.

        Args:
          config: of the pipeline.
          maker: problems and scores.
          learner: the update.
          engines: one for each worker.
          sampler: for measuring; takes weights when it is asked.

        Raises:
          RLError: when there are not as many engines as workers.
        """
        if len(engines) != config.workers:
            raise RLError(f"pipeline: {len(engines)} engines for workers={config.workers}")
        self.config, self.maker, self.learner, self.sampler = config, maker, learner, sampler
        stage = learner.config
        self.buffer = GroupBuffer(
            config.buffer_batches * stage.prompts,
            stage.group_size,
            most_versions_behind=config.most_updates_behind,
        )
        self.last_groups: list[RolloutGroup] = []
        self._dropped: collections.deque[RolloutGroup] = collections.deque()
        self._useless = 0  # groups since the last batch that taught nothing or broke
        self._lock = threading.Lock()
        self._variables: dict[str, Any] | None = None
        self._started = 0.0
        self._drawn = 0  # tokens of all workers until the last step
        self.workers = [
            RolloutWorker(
                engine,
                maker,
                name=f"rollouts-{i}",
                seed=stage.seed + 7_919 * i,
                groups_in_flight=config.groups_in_flight,
                least_groups=self._least_groups(),
                may_start=self._may_start,
                deliver=self._deliver,
            )
            for i, engine in enumerate(engines)
        ]

    def step(self, state: PolicyState) -> tuple[PolicyState, dict[str, Any]]:
        """One update from groups of the buffer; new weights for the workers when it is time."""
        config, number, start = self.config, int(state.step), time.monotonic()
        if self._variables is None:
            self._started, self._variables = start, state.variables
            for worker in self.workers:
                worker.start(self._variables, number)
        batches = config.batches_waiting if number % config.updates_per_sync == 0 else 1
        kept = self._take(number, batches)
        with self._lock:
            dropped, self._dropped, self._useless = list(self._dropped), collections.deque(), 0
        taken = time.monotonic()
        state, metrics = self.learner.learn(state, kept, dropped)
        trained = time.monotonic()
        self._variables, updates = state.variables, int(state.step)
        if updates % config.updates_per_sync == 0:
            for worker in self.workers:
                worker.offer_weights(self._variables, updates)
            for worker in self.workers:
                worker.wait_for_weights()
        self.last_groups = kept
        drawn = sum(worker.counts.tokens for worker in self.workers)
        self._drawn, new_tokens = drawn, drawn - self._drawn
        seconds = time.monotonic() - start
        return state, {
            **metrics,
            **self._figures(kept, number),
            **throughput(new_tokens, kept, waited=taken - start, seconds=seconds),
            "sample_seconds": taken - start,
            "train_seconds": trained - taken,
            "sync_seconds": time.monotonic() - trained,
        }

    def held_out_rewards(
        self, problems: int, *, difficulty: int = 0
    ) -> dict[str, Float[np.ndarray, " problems"]]:
        """As `GroupMaker.held_out_rewards`, with the weights of the last update."""
        if self._variables is not None:
            self.sampler.load_weights(self._variables)
        return self.maker.held_out_rewards(self.sampler, problems, difficulty=difficulty)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the policy; plain JSON values."""
        return {
            "scheduler": self.maker.scheduler.get_state(),
            "best": self.learner.best.get_state(),
            "buffer": self.buffer.get_state(),
        }

    def set_state(self, state: Mapping[str, Any], policy: PolicyState) -> None:
        """Continues from a checkpoint, of this mode or of the synchronous one."""
        self.maker.scheduler.set_state(state["scheduler"])
        self.learner.best.set_state(state["best"])
        if "buffer" in state:
            self.buffer.set_state(state["buffer"])
        self.sampler.load_weights(policy.variables)

    def close(self) -> None:
        """Stops all workers."""
        for worker in self.workers:
            worker.stop()

    # For workers

    def _may_start(self, groups: int) -> bool:
        if self.config.when_full is WhenFull.EVICT:
            return True
        under_way = sum(worker.groups_under_way for worker in self.workers)
        return len(self.buffer) + under_way + groups <= self.buffer.capacity

    def _least_groups(self) -> int:
        """All that a worker can have under way; less where the trainer would wait for its share."""
        config, prompts = self.config, self.learner.config.prompts
        room = self.buffer.capacity - config.batches_waiting * prompts
        return max(1, min(config.groups_in_flight, room // config.workers))

    def _deliver(self, group: RolloutGroup | None) -> None:
        teaches = group is not None and self.learner.teaches(group)
        with self._lock:
            self._useless += not teaches
            if group is not None and not teaches:
                self._dropped.append(group)
        if group is not None and teaches:
            self.buffer.add(group)

    # For the trainer

    def _take(self, updates: int, batches: int) -> list[RolloutGroup]:
        """A batch, once so many are there; a smaller one when too many groups taught nothing.

        Raises:
          RLError: when none will come: all workers failed, every group is filtered out, or nothing
            finished for too long.
        """
        stage, last, seen = self.learner.config, time.monotonic(), self._finished()
        while True:
            if self._useless >= stage.most_rounds * stage.prompts:
                batches, prompts = 0, min(max(1, len(self.buffer)), stage.prompts)
            else:
                prompts = stage.prompts
            waiting = max(batches * stage.prompts, prompts)
            try:
                return self.buffer.take(prompts, updates, waiting=waiting, seconds=_LOOK_SECONDS)
            except TimeoutError:
                self._check_workers(is_hopeless=batches == 0)
            if self._finished() != seen:
                seen, last = self._finished(), time.monotonic()
            elif time.monotonic() - last > self.config.patience_seconds:
                raise RLError(
                    f"no group of rollouts was finished in {self.config.patience_seconds:g} s: an "
                    "environment or the engine hangs"
                )

    def _finished(self) -> tuple[int, int]:
        return self.buffer.counts.added, self._useless

    def _check_workers(self, *, is_hopeless: bool) -> None:
        if not any(worker.running for worker in self.workers):
            causes = [worker.failure for worker in self.workers if worker.failure is not None]
            first = causes[0] if causes else None
            raise RLError(f"all rollout workers have ended: {first}") from first
        if is_hopeless:
            with self._lock:
                rates = [float(group.rewards.mean()) for group in self._dropped]
            drawn = f"all {self._useless} groups since the last step"
            raise NothingToLearnError(drawn, rates, self.maker.fault)

    def _figures(self, kept: Sequence[RolloutGroup], updates: int) -> dict[str, Any]:
        """Age of the policy by token, what the buffer lost, and who waited for whom."""
        ages = np.concatenate([updates - r.versions for group in kept for r in group.rollouts])
        counts, elapsed = self.buffer.counts, time.monotonic() - self._started
        idle = sum(worker.counts.idle_seconds for worker in self.workers)
        return {
            "policy_age_mean": float(ages.mean()),
            "policy_age_max": int(ages.max()),
            "group_age_max": max(updates - group.started for group in kept),
            "mixed_rollouts": float(
                np.mean([np.ptp(r.versions) > 0 for group in kept for r in group.rollouts])
            ),
            "buffered_groups": len(self.buffer),
            "evicted_groups": counts.evicted,
            "stale_groups": counts.stale,
            "workers_running": sum(worker.running for worker in self.workers),
            "workers_idle_share": idle / (elapsed * len(self.workers)),
            "rollout_tokens": sum(worker.counts.tokens for worker in self.workers),
        }
