"""Muon in the training step: it learns, stays in place, and is listed by the dry run."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.tiny import RUN, random_batch
from zaya_jax.training.dry_run import describe, plan
from zaya_jax.training.state import (
    TrainState,
    abstract_batch,
    abstract_state,
    init_state,
    seed_key_data,
)
from zaya_jax.training.step import train_step

CONFIG = dataclasses.replace(RUN, optimizer=dataclasses.replace(RUN.optimizer, kind="muon"))
QUICK = {"xla_backend_optimization_level": "0"}


@pytest.fixture(scope="module")
def step() -> jax.stages.Compiled:
    function = jax.jit(
        functools.partial(train_step, CONFIG), donate_argnums=0, compiler_options=QUICK
    )
    return function.lower(abstract_state(CONFIG), abstract_batch(CONFIG.data)).compile()


@pytest.fixture
def state() -> TrainState:
    create = jax.jit(lambda key: init_state(CONFIG, key), compiler_options=QUICK)
    return create(seed_key_data(0))


def test_repeating_one_batch_learns_it(step: jax.stages.Compiled, state: TrainState):
    losses = []
    for _ in range(CONFIG.train.steps):
        state, metrics = step(state, random_batch())
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0] - 1.5


def test_a_batch_of_prompts_only_changes_no_parameter(step: jax.stages.Compiled, state: TrainState):
    batch = random_batch()
    batch["loss_weights"] = np.zeros_like(batch["loss_weights"])
    state, _ = step(state, random_batch())  # so that there is momentum
    before = jax.tree.map(jnp.copy, state.params)
    state, _ = step(state, batch)
    jax.tree.map(np.testing.assert_array_equal, before, state.params)


def test_state_is_updated_in_place(step: jax.stages.Compiled):
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract_state(CONFIG)))
    assert step.memory_analysis().alias_size_in_bytes >= 0.99 * size


def test_the_dry_run_lists_who_moves_what():
    text = describe(plan(CONFIG))
    muon = text.split("Muon, decayed")[1]
    assert "layers/experts/gate_up" in muon
    assert "embedding" in text.split("AdamW, decayed")[1].split("AdamW, not decayed")[0]
