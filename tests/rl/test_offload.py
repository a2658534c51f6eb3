"""A policy whose optimiser's moments wait in host memory learns the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.rl import reinforce
from tests.rl.test_command import story, tiny
from tests.rl.test_trainer import TRAINER, packed
from tests.rl.tiny_policy import MODEL, variables
from zaya_jax.parallel.mesh import build_mesh
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.rl.trainer import PolicyState, apply_gradient
from zaya_jax.training.offload import HOST_MEMORY
from zaya_jax.training.placement import Placement


def memories(state: PolicyState) -> set[str]:
    return {x.sharding.memory_kind for x in jax.tree.leaves(state.optimizer_state) if x.shape}


def test_an_update_with_moments_on_the_host_is_the_same_bit_for_bit() -> None:
    on_host = Placement(MODEL, None, offload_moments=True)
    offloading = dataclasses.replace(TRAINER, placement=on_host)
    state, plain = offloading.init(variables()), TRAINER.init(variables())
    assert memories(state) == {HOST_MEMORY}
    gradient = variables()["params"]
    for _ in range(2):
        state = apply_gradient(offloading, state, gradient)
        plain = apply_gradient(TRAINER, plain, gradient)
    assert (memories(state), memories(plain)) == ({HOST_MEMORY}, {"device"})
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(plain))


@pytest.mark.slow
def test_it_is_so_over_several_devices() -> None:
    mesh = build_mesh(MeshConfig(data=2, fsdp=4))
    rows = packed()
    rows = [{name: np.repeat(x, 4, axis=-2) for name, x in part.items()} for part in rows]
    updated = []
    for offload in (False, True):
        placement = Placement(MODEL, mesh, offload_moments=offload)
        trainer = dataclasses.replace(TRAINER, placement=placement)
        state, _ = trainer.update(trainer.init(variables()), rows)
        assert memories(state) == {HOST_MEMORY if offload else "device"}
        updated.append(jax.device_get(state))
    jax.tree.map(np.testing.assert_array_equal, *updated)


@pytest.mark.slow
def test_a_run_may_begin_with_offloading_and_go_on_without(tmp_path: Path) -> None:
    def run(name: str, steps: int, *, offload: bool) -> None:
        config, setup = tiny(steps)
        optimizer = dataclasses.replace(config.optimizer, offload_state=offload)
        config = dataclasses.replace(config, optimizer=optimizer)
        placement = Placement(config.model, None, offload_moments=offload)
        assert reinforce(config, setup, tmp_path / name, placement) == 0

    run("plain", 6, offload=False)
    run("mixed", 2, offload=True)
    run("mixed", 4, offload=False)
    run("mixed", 6, offload=True)
    assert story(tmp_path / "mixed") == story(tmp_path / "plain")
