"""Engines in Ray actors: the same answers, and a lost actor costs only its groups."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from experiments.rl_stage import engine_sampler
from tests.rl.scripted_engine import ScriptedEngine
from tests.rl.test_engine_sampler import PROMPTS, SETTINGS
from tests.rl.test_pipeline import PIPELINE, pipeline_of
from tests.rl.test_stage import Parity
from tests.rl.tiny_policy import MODEL, variables
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.ray_engine import ActorResources, RayEngine, ray_engines
from zaya_jax.rl.scoring import Scorer

pytestmark = pytest.mark.slow
MAKE = functools.partial(engine_sampler, MODEL, SETTINGS, stop_token=3, most_tokens=8)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    ray.init(num_cpus=3, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


def answers(engine: Any) -> dict[int, Any]:
    numbers = [engine.submit(prompt, seed) for seed, prompt in enumerate(PROMPTS)]
    found: dict[int, Any] = {}
    while not engine.idle:
        found.update(engine.step())
    return {numbers.index(number): response for number, response in found.items()}


def test_an_actor_answers_as_the_engine_beside_it_does_also_with_new_weights() -> None:
    here = MAKE(variables())
    there = RayEngine(functools.partial(MAKE, variables()), ActorResources())
    for weights in (None, variables(1)):
        if weights is not None:
            assert there.load_weights(weights) == here.load_weights(weights) == 1
        ours, theirs = answers(here), answers(there)
        assert ours.keys() == theirs.keys()
        for number, response in ours.items():
            for a, b in zip(response, theirs[number], strict=True):
                np.testing.assert_array_equal(a, b)
    there.close()


def test_a_killed_actor_costs_its_groups_and_the_run_goes_on() -> None:
    engines = [RayEngine(ScriptedEngine, ActorResources()) for _ in range(2)]
    patient = dataclasses.replace(PIPELINE, patience_seconds=600.0)  # actors are long in coming
    stage, state = pipeline_of(patient, engines)
    try:
        state, metrics = stage.step(state)
        assert metrics["workers_running"] == 2
        engines[0].close()
        for _ in range(6):
            state, metrics = stage.step(state)
        assert metrics["workers_running"] == 1
        assert all(group.check(4) is None for group in stage.last_groups)
    finally:
        stage.close()


def test_responses_are_scored_in_the_actor_if_it_is_told_how() -> None:
    def make_scorer() -> Scorer:
        return Scorer([Parity()], has_thinking=False)

    problem = Parity().sample(0, 1)
    engine = RayEngine(ScriptedEngine, ActorResources(), make_scorer=make_scorer)
    scores = engine.scores(problem, ["4 3", "5 3", "no number"])
    assert scores is not None
    assert [score.reward for score in scores] == [1, 0, 0]
    assert [score.broken for score in scores] == [False, False, True]
    engine.close()
    alone = RayEngine(ScriptedEngine, ActorResources())
    assert alone.scores(problem, ["4 3"]) is None
    alone.close()


def test_resources_that_no_node_has_are_refused_at_once() -> None:
    with pytest.raises(RLError, match="4 rollout workers ask for 4 CPU, but the Ray cluster has 3"):
        ray_engines(4, ScriptedEngine, ActorResources())
    with pytest.raises(RLError, match="asks for 2 GPU, but the Ray cluster has 0"):
        RayEngine(ScriptedEngine, ActorResources(gpus=2.0))
