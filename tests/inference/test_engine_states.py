"""Whatever joins, leaves and waits in whatever order, every answer is the full forward pass's."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.inference.models import LENGTH, TINY, assert_as_trained, prompt, tiny_variables
from tests.inference.test_engine import SETTINGS
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Completion, FinishReason, Request, SamplingParams

MOST_NEW = 20
COMMON = prompt(100, LENGTH)  # what some prompts begin with


class EngineMachine(RuleBasedStateMachine):
    """Requests come, go and are given up between steps; finished ones are compared at once."""

    settings = SETTINGS

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(TINY, tiny_variables(), settings=self.settings)
        self.weights = 2  # the seed that made them
        self.open: dict[int, Request] = {}

    @rule(
        common=st.integers(0, LENGTH - MOST_NEW - 8),
        own=st.integers(1, 8),
        new=st.integers(1, MOST_NEW),
        seed=st.integers(0, 99),
        greedy=st.booleans(),
    )
    def join(self, common: int, own: int, new: int, seed: int, greedy: bool) -> None:
        tokens = (*COMMON[:common], *prompt(seed, own))
        sampling = SamplingParams(max_tokens=new, seed=seed, temperature=0.0 if greedy else 1.0)
        request = Request(tokens, sampling)
        self.open[self.engine.submit(request)] = request

    @precondition(lambda self: self.open)
    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.take(self.engine.step())

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        update = self.engine.cancel(number)
        assert update is not None
        self.check(self.open.pop(number), update.completion)

    @precondition(lambda self: not self.open)
    @rule()
    def change_weights(self) -> None:
        self.weights = 11 - self.weights
        self.engine.load_weights(tiny_variables(self.weights))

    @invariant()
    def nothing_is_lost(self) -> None:
        now = self.engine.statistics
        assert now["running"] + now["waiting"] == len(self.open)
        assert now["running"] + now["free_slots"] == self.settings.slots
        assert now["remembered_pages"] <= now["pages"]
        if not self.open:
            assert now["pages_in_use"] == now["remembered_pages"]

    def teardown(self) -> None:
        while self.open:
            self.take(self.engine.step())
        self.nothing_is_lost()

    def take(self, updates: Any) -> None:
        for update in updates:
            if update.completion.finish_reason is not None:
                request = self.open.pop(update.number)
                assert update.completion.finish_reason is FinishReason.LENGTH
                assert len(update.completion.tokens) == request.sampling.max_tokens
                self.check(request, update.completion)

    def check(self, request: Request, completion: Completion) -> None:
        """Tokens, log-probabilities to 1e-5 and routes, as far as the request came."""
        assert completion.prompt == request.tokens
        if completion.tokens:
            greedy = request.sampling.temperature == 0
            assert_as_trained(tiny_variables(self.weights), completion, greedy=greedy)


def run(machine: Any, steps: int, examples: int) -> None:
    machine.TestCase.settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    machine.TestCase().runTest()


def test_every_order_of_events_gives_the_full_forwards_numbers() -> None:
    run(EngineMachine, steps=25, examples=2)


SMALL = dataclasses.replace(SETTINGS, cache_tokens=112)  # two sequences fill it: some are set aside
CHUNKS = {
    "roomy": SETTINGS,
    "crowded": SMALL,
    "no prefixes": dataclasses.replace(SMALL, prefix_cache=False),
    "chunks of 5, pages of 3": dataclasses.replace(
        SMALL, prefill_chunk=5, page_size=3, decode_steps=3, prefill_rows=2, least_rows=1
    ),
    "one by one": dataclasses.replace(SETTINGS, prefill_chunk=1, decode_steps=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHUNKS)
def test_long_histories(name: str) -> None:
    class Machine(EngineMachine):
        settings = CHUNKS[name]

    run(Machine, steps=220, examples=2)  # the first one is the simplest there is
