"""A LoRA run's steps: the frozen model is where it starts, and stays as it was."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from tests.training.tiny import RUN, random_batch
from zaya_jax.config import ConfigError
from zaya_jax.lora import merge_adapters
from zaya_jax.lora_settings import LoraConfig
from zaya_jax.optimizer.groups import names_of
from zaya_jax.parallel.mesh import build_mesh
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.training.shardings import tree_shardings
from zaya_jax.training.state import TrainState, abstract_state, init_state, seed_key_data
from zaya_jax.training.step import train_step, validation_step

QUICK_COMPILE = {"xla_backend_optimization_level": "0"}
LORA = dataclasses.replace(
    RUN,
    init_from="somewhere",
    lora=LoraConfig(rank=2, alpha=8.0, targets=("attention", "experts", "router")),
)


def test_training_moves_adapters_and_leaves_the_base_alone() -> None:
    initialise = jax.jit(lambda key: init_state(LORA, key), compiler_options=QUICK_COMPILE)
    start: TrainState = initialise(seed_key_data(0))
    step = jax.jit(functools.partial(train_step, LORA), compiler_options=QUICK_COMPILE)
    validate = jax.jit(functools.partial(validation_step, RUN), compiler_options=QUICK_COMPILE)
    batch = random_batch()
    whole = {"params": start.base, "balancing": start.balancing}
    plain = validate(whole, None, batch)

    state, losses = start, []
    for _ in range(6):
        state, metrics = step(state, batch)
        losses.append(float(metrics.loss))
    assert losses[0] == pytest.approx(float(plain.loss / plain.weight), rel=1e-6)
    assert losses[-1] < losses[0] - 0.01

    jax.tree.map(np.testing.assert_array_equal, state.base, start.base)
    for one, other in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(start.params), strict=True
    ):
        assert (np.asarray(one) != np.asarray(other)).any()
    shapes = {leaf.shape for leaf in jax.tree.leaves(state.params)}
    assert {leaf.shape for leaf in jax.tree.leaves(state.optimizer_state)} == shapes | {()}

    merged = merge_adapters(state.base, state.params, LORA.lora)
    after = validate({"params": merged, "balancing": state.balancing}, None, batch)
    _, metrics = step(state, batch)
    assert float(after.loss / after.weight) == pytest.approx(float(metrics.loss), rel=1e-6)


def test_adapters_are_split_like_their_matrices() -> None:
    mesh = build_mesh(MeshConfig(data=1, expert=2, tensor=2, fsdp=1), jax.devices()[:4])
    shardings = tree_shardings(abstract_state(LORA), LORA.model, mesh)
    specs: dict[str, Any] = {
        "/".join(names_of(path)): sharding.spec
        for path, sharding in jax.tree_util.tree_leaves_with_path(shardings)
    }
    for name in ("experts/gate_up", "experts/down", "attention/query/weight"):
        *stack, rows, columns = specs[f"base/layers/{name}"]
        assert list(specs[f"params/layers/{name}/lora_a"]) == [*stack, None, columns]
        assert list(specs[f"params/layers/{name}/lora_b"]) == [*stack, rows, None]


def test_adapters_need_a_model_to_adapt() -> None:
    with pytest.raises(ConfigError, match=r"lora.rank=2 adapts a trained model: .* init_from"):
        dataclasses.replace(LORA, init_from="")
