"""On a mesh the engine gives what it gives on one device.

By default: parts and experts both split. With `-m slow`: each alone, and long histories.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.inference.models import TINY, assert_as_trained, prompt, tiny_variables
from tests.inference.test_engine import MIXED, SETTINGS, request
from tests.inference.test_engine_states import EngineMachine, run
from zaya_jax.config import ConfigError
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Completion, FinishReason, Request, SamplingParams
from zaya_jax.inference.settings import EngineSettings

BOTH = {"mesh_data": 2, "mesh_expert": 2}
MESHES = {
    "both": BOTH,
    "data": {"mesh_data": 2},
    "expert": {"mesh_expert": 2},
    "all devices": {"mesh_data": 2, "mesh_expert": 4},
}


def settings_on(mesh: dict[str, int], **changes: Any) -> EngineSettings:
    return dataclasses.replace(SETTINGS, least_rows=2, **mesh, **changes)


@functools.cache
def engine_on(name: str) -> Engine:
    """One for all tests of a mesh; they leave it idle."""
    return Engine(TINY, tiny_variables(), settings=settings_on(MESHES[name]))


def history(engine: Engine) -> list[Completion]:
    """Requests that come while others run, one of which is given up; greedy ones and drawn ones."""
    finished: dict[int, Completion] = {}

    def step() -> None:
        for update in engine.step():
            if update.completion.finish_reason is not None:
                finished[update.number] = update.completion

    numbers = [engine.submit(own) for own in MIXED[:3]]
    step()
    numbers += [engine.submit(own) for own in MIXED[3:]]
    step()
    given_up = engine.cancel(numbers[2])
    assert given_up is not None
    finished[numbers[2]] = given_up.completion
    numbers.append(engine.submit(request(9, 11, 13, temperature=0.0)))
    while not engine.idle:
        step()
    return [finished[number] for number in numbers]


def check_history(name: str) -> None:
    one = Engine(TINY, tiny_variables(), settings=SETTINGS)
    for ours, theirs in zip(history(engine_on(name)), history(one), strict=True):
        shared = min(len(ours.tokens), len(theirs.tokens))
        is_cancelled = ours.finish_reason is FinishReason.CANCELLED
        assert ours.finish_reason is theirs.finish_reason
        assert is_cancelled or len(ours.tokens) == len(theirs.tokens)
        assert ours.tokens[:shared] == theirs.tokens[:shared]
        for kind in ("log_probabilities", "raw_log_probabilities"):
            np.testing.assert_allclose(
                getattr(ours, kind)[:shared], getattr(theirs, kind)[:shared], atol=1e-5
            )
        fed = len(ours.prompt) + shared - 1
        np.testing.assert_array_equal(ours.routes[:fed], theirs.routes[:fed])


def test_a_history_on_a_mesh_is_that_of_one_device() -> None:
    check_history("both")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "expert", "all devices"])
def test_a_history_on_other_meshes_is_that_of_one_device(name: str) -> None:
    check_history(name)


def test_a_prefix_is_found_in_the_part_that_has_it() -> None:
    engine = engine_on("both")
    engine.load_weights(tiny_variables())
    first = engine.generate([Request(prompt(3, 20), SamplingParams(max_tokens=4, temperature=0.0))])
    longer = (*first[0].prompt, *first[0].tokens)
    requests = [
        Request(longer, SamplingParams(max_tokens=6, temperature=0.0)),
        Request(prompt(4, 20), SamplingParams(max_tokens=6, temperature=0.0)),
    ]
    again, other = engine.generate(requests)
    assert again.cached_tokens == 20  # of 24 tokens, the last of which is always computed
    assert other.cached_tokens == 0
    for completion in (again, other):
        assert_as_trained(tiny_variables(), completion, greedy=True)


def test_every_device_holds_its_part_alone() -> None:
    dispatcher: Any = engine_on("both")._dispatcher
    for leaf in jax.tree.leaves(dispatcher._cache):
        assert leaf.sharding.shard_shape(leaf.shape)[1] * 2 == leaf.shape[1]
    for layer in dispatcher._weights.layers:
        for experts in layer["experts"]:
            assert experts.sharding.shard_shape(experts.shape)[0] == TINY.num_experts // 2
        assert layer["router"]["down"]["weight"].sharding.is_fully_replicated


def test_parts_fill_evenly() -> None:
    engine = engine_on("both")
    numbers = [engine.submit(request(seed, 9, 40)) for seed in range(3)]
    engine.step()
    free = sorted(len(part.free_slots) for part in engine._parts)
    for number in numbers:
        engine.cancel(number)
    assert free == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh_data": 3}, "slots=4: must be a multiple of mesh_data=3"),
        ({"mesh_data": 4, "cache_tokens": 31}, "in each of mesh_data=4 parts"),
        ({"mesh_expert": 2, "expert_bits": 8}, "expert_bits=8 needs mesh_expert=1"),
        ({"mesh_expert": 3}, "mesh_expert=3 does not divide the model's 4 experts"),
        ({"mesh_data": 4, "mesh_expert": 4}, r"needs 16 devices, there are 8; .*DEVICES=16"),
        ({"mesh_data": 0}, "mesh_data=0: must be a positive integer"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Engine(TINY, tiny_variables(), settings=dataclasses.replace(SETTINGS, **changes))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["both", "data"])
def test_long_histories_on_a_mesh(name: str) -> None:
    class Machine(EngineMachine):
        settings = settings_on(MESHES[name], cache_tokens=224)  # two sequences fill a part

    run(Machine, steps=220, examples=2)
