"""Rollouts and training at once: whole groups of bounded age, failures that stay where they are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.rl import groups
from tests.rl.scripted_engine import ScriptedEngine
from tests.rl.test_stage import CONFIG, Failing, Parity
from tests.rl.tiny_policy import MODEL, ONE_DEVICE, variables
from zaya_jax.optimizer.settings import OptimizerConfig
from zaya_jax.rl.curriculum.scheduler import OnlineScheduler
from zaya_jax.rl.dynamic_sampling import GroupFilter
from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.group_maker import GroupMaker
from zaya_jax.rl.learner import Learner
from zaya_jax.rl.losses import PolicyLossConfig
from zaya_jax.rl.pipeline import PipelineConfig, PipelineStage, WhenFull
from zaya_jax.rl.records import RolloutGroup
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.trainer import PolicyState, PolicyTrainer

PIPELINE = PipelineConfig(groups_in_flight=4, patience_seconds=60.0, when_full=WhenFull.WAIT)


@dataclasses.dataclass(frozen=True)
class CountingTrainer(PolicyTrainer):
    """Counts updates instead of making them."""

    def update(self, state: PolicyState, microbatches: Any) -> tuple[PolicyState, dict[str, Any]]:
        return dataclasses.replace(state, step=state.step + 1), {}


Maker = Callable[..., tuple[PipelineStage, list[ScriptedEngine], PolicyState]]


def pipeline_of(
    config: PipelineConfig, engines: Sequence[Any], environment: Any = None, **changes: Any
) -> tuple[PipelineStage, PolicyState]:
    stage = dataclasses.replace(CONFIG, **changes)
    maker = GroupMaker(
        stage,
        [environment or Parity()],
        OnlineScheduler({"parity": (0, 0)}, seed=0),
        encode=lambda text: [1, *(ord(c) % 40 for c in text)],
        decode=lambda ids: " ".join(map(str, ids)),
    )
    trainer = CountingTrainer(MODEL, OptimizerConfig(), PolicyLossConfig(), 100, ONE_DEVICE)
    config = dataclasses.replace(config, workers=len(engines))
    made = PipelineStage(config, maker, Learner(stage, trainer), engines, ScriptedEngine())
    return made, trainer.init(variables())


@pytest.fixture
def make() -> Iterator[Maker]:
    made: list[PipelineStage] = []

    def pipeline(
        environment: Any = None, config: PipelineConfig = PIPELINE, **changes: Any
    ) -> tuple[PipelineStage, list[ScriptedEngine], PolicyState]:
        engines = [ScriptedEngine() for _ in range(config.workers)]
        stage, state = pipeline_of(config, engines, environment, **changes)
        made.append(stage)
        return stage, engines, state

    yield pipeline
    for stage in made:
        stage.close()


def test_batches_are_whole_groups_that_teach(make: Maker) -> None:
    stage, _, state = make(Failing(), PIPELINE)
    for _ in range(3):
        state, metrics = stage.step(state)
        assert len(stage.last_groups) == CONFIG.prompts
        for group in stage.last_groups:
            assert group.check(CONFIG.group_size) is None
            assert np.ptp(group.rewards) > 0
            assert group.problem.prompt == "b"  # the verifier of the other one fails
        assert metrics["workers_running"] == 1
    assert int(state.step) == 3


def test_weights_go_to_every_worker_after_so_many_updates_and_tag_every_token(make: Maker) -> None:
    config = dataclasses.replace(PIPELINE, workers=2, updates_per_sync=2, batches_waiting=1)
    stage, engines, state = make(None, config)
    for _ in range(8):
        state, metrics = stage.step(state)
        now = int(state.step) - 1
        for group in stage.last_groups:
            versions = np.concatenate([rollout.versions for rollout in group.rollouts])
            assert set(versions.tolist()) <= {0, 2, 4, 6}
            assert group.started == versions.min()
            assert now - group.started <= config.most_updates_behind
        assert metrics["policy_age_max"] == max(
            now - int(r.versions.min()) for g in stage.last_groups for r in g.rollouts
        )
    assert [len(engine.loaded) for engine in engines] == [5, 5]  # at 0, 2, 4, 6 and 8 updates


def test_a_response_under_way_goes_on_with_the_new_weights(make: Maker) -> None:
    busy = dataclasses.replace(PIPELINE, updates_per_sync=1, when_full=WhenFull.EVICT)
    # Unfiltered, for how soon a response is under way at an update is a matter of luck.
    stage, _, state = make(None, busy, group_filter=GroupFilter.NONE)
    mixed = 0.0
    for _ in range(1_000):
        state, metrics = stage.step(state)
        mixed = max(mixed, metrics["mixed_rollouts"])
        if mixed:
            break
    rollouts = [r for g in stage.last_groups for r in g.rollouts if np.ptp(r.versions)]
    assert rollouts
    assert all(np.all(np.diff(r.versions) > 0) for r in rollouts)


def test_groups_that_are_too_old_are_not_trained_on(make: Maker) -> None:
    stage, _, state = make(None, dataclasses.replace(PIPELINE, most_updates_behind=1))
    for _ in range(6):
        now = int(state.step)
        state, metrics = stage.step(state)
        assert all(now - group.started <= 1 for group in stage.last_groups)
    assert metrics["stale_groups"] > 0


def test_one_failed_worker_costs_its_groups_and_all_failed_stop_the_run(make: Maker) -> None:
    stage, engines, state = make(None, dataclasses.replace(PIPELINE, workers=2))
    engines[0].fail_at = 2
    for _ in range(3):
        state, metrics = stage.step(state)
    assert metrics["workers_running"] == 1
    engines[1].fail_at = engines[1].steps + 1

    def go_on(state: PolicyState) -> None:
        for _ in range(20):
            state, _ = stage.step(state)

    with pytest.raises(RLError, match="all rollout workers have ended: the device is gone"):
        go_on(state)


def test_problems_that_teach_nothing_stop_the_run_with_the_reason(make: Maker) -> None:
    class Never(Parity):
        def score(self, problem: Problem, answer: str) -> Score:
            return Score(0.0, "never")

    stage, _, state = make(Never())
    with pytest.raises(RLError, match=r"were filtered out \(mean reward 0\.000"):
        stage.step(state)


def test_a_batch_is_smaller_when_few_groups_teach(make: Maker) -> None:
    stage, _, _ = make()
    for rewards in ([1, 0, 1, 0], [0, 0, 0, 1], *([[1, 1, 1, 1]] * 3)):
        stage._deliver(groups.group(rewards))
    for _ in range(CONFIG.most_rounds * CONFIG.prompts - 3):
        stage._deliver(None)  # a verifier failed
    assert [list(g.rewards) for g in stage._take(0, 2)] == [[1, 0, 1, 0], [0, 0, 0, 1]]
    assert len(stage._dropped) == 3


def test_a_verifier_that_raises_breaks_its_groups_only(make: Maker) -> None:
    class Raising(Parity):
        def score(self, problem: Problem, answer: str) -> Score:
            if problem.prompt == "a":
                raise KeyError("answer")
            return super().score(problem, answer)

    stage, _, state = make(Raising())
    stage.step(state)
    assert {group.problem.prompt for group in stage.last_groups} == {"b"}


def test_an_engine_that_hangs_is_given_up(make: Maker) -> None:
    stage, [engine], state = make(None, dataclasses.replace(PIPELINE, patience_seconds=0.2))
    engine.allow.clear()
    try:
        with pytest.raises(RLError, match=r"no group of rollouts was finished in 0\.2 s"):
            stage.step(state)
    finally:
        engine.allow.set()


def test_a_full_buffer_evicts_the_oldest_or_makes_workers_wait(make: Maker) -> None:
    evicting = dataclasses.replace(PIPELINE, when_full=WhenFull.EVICT, most_updates_behind=100)
    for config, evicted in ((evicting, True), (PIPELINE, False)):
        stage, _, state = make(None, config)
        state, _ = stage.step(state)
        for _ in range(2_000):
            if stage.buffer.counts.evicted or stage.workers[0].counts.idle_seconds > 0.2:
                break
            stage.workers[0]._thread.join(0.01)
        assert bool(stage.buffer.counts.evicted) == evicted
        assert len(stage.buffer) <= stage.buffer.capacity


def test_an_idle_engine_begins_with_as_many_groups_as_it_takes(make: Maker) -> None:
    class Counting(ScriptedEngine):
        def step(self) -> list[Any]:
            began.append(len(self._under_way))
            return super().step()

    began: list[int] = []
    engine = Counting()
    stage, state = pipeline_of(PIPELINE, [engine])
    try:
        for _ in range(4):
            state, _ = stage.step(state)
    finally:
        stage.close()
    whole = PIPELINE.groups_in_flight * CONFIG.group_size
    assert set(began) == {whole}


@pytest.mark.parametrize(("workers", "groups"), [(1, 4), (2, 4), (3, 2), (20, 1)])
def test_workers_leave_room_for_the_batches_that_the_trainer_waits_for(
    make: Maker, workers: int, groups: int
) -> None:
    stage, _, _ = make(None, dataclasses.replace(PIPELINE, workers=workers))
    assert stage._least_groups() == groups


def test_buffer_and_curriculum_survive_a_restart(make: Maker) -> None:
    first, _, state = make()
    state, _ = first.step(state)
    first.close()
    saved = json.loads(json.dumps(first.get_state()))
    other, _, _ = make()
    other.set_state(saved, state)
    assert other.get_state() == saved

    def told(given: list[RolloutGroup]) -> list[Any]:
        return [group.to_plain() for group in given]

    waiting = [RolloutGroup.from_plain(plain) for plain in saved["buffer"]["groups"]]
    assert len(waiting) >= CONFIG.prompts
    other.step(state)
    assert told(other.last_groups) == told(waiting[: CONFIG.prompts])


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(RLError, match="pipeline: workers=0: must be positive"):
        PipelineConfig(workers=0)
    with pytest.raises(RLError, match="buffer_batches=1 is less than batches_waiting=2"):
        PipelineConfig(buffer_batches=1)
    with pytest.raises(RLError, match="a pipeline needs an engine"):
        RLSetup(CONFIG, tuple, 4, 6, pipeline=PIPELINE)
