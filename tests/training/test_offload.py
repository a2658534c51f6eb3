"""Moments in host memory: the same numbers, and that they do lie there."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.test_step import QUICK_COMPILE
from tests.training.tiny import MODEL, RUN, random_batch
from zaya_jax.checkpoint.manager import CheckpointManager
from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.config import ConfigError, ExpertDispatch
from zaya_jax.optimizer.create import create_optimizer
from zaya_jax.optimizer.settings import OptimizerKind
from zaya_jax.parallel.mesh import build_mesh
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.training.offload import HOST_MEMORY
from zaya_jax.training.placement import Placement, choose_placement, plan_placement
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.startup import training_part
from zaya_jax.training.state import TrainState, abstract_batch, abstract_state
from zaya_jax.training.step import train_step
from zaya_jax.training.watchdog import guarded_step

QUICK = dataclasses.replace(  # dense experts compile sooner
    RUN,
    model=MODEL.replace(expert_dispatch=ExpertDispatch.DENSE),
    data=dataclasses.replace(RUN.data, batch_size=8),
)
MUON = dataclasses.replace(
    QUICK, optimizer=dataclasses.replace(QUICK.optimizer, kind=OptimizerKind.MUON)
)


def random_state(config: RunConfig) -> TrainState:
    random = np.random.default_rng(0)

    def draw(leaf: Any) -> Any:
        if leaf.dtype != jnp.float32:
            return np.zeros(leaf.shape, leaf.dtype)
        return 0.1 * random.random(leaf.shape, np.float32)  # second moments are not negative

    return jax.tree.map(draw, abstract_state(config))


def placed(placement: Placement, state: TrainState) -> TrainState:
    shardings = placement.shardings(state)
    return jax.device_put(state, jax.devices()[0] if shardings is None else shardings)


def update_alone(config: RunConfig, state: TrainState, batch: Any) -> tuple[TrainState, Any]:
    """What of a step touches moments, with the parameters as the gradient: soon compiled."""
    optimizer = create_optimizer(config.optimizer, config.train.steps)
    updates, moments = optimizer.update(state.params, state.optimizer_state, state.params)
    params = optax.apply_updates(state.params, updates)
    state = dataclasses.replace(state, params=params, optimizer_state=moments)
    return state, Report(jnp.float32(0), optax.tree.norm(updates))


class Report(NamedTuple):
    loss: Any
    grad_norm: Any


def after_two_steps(
    config: RunConfig, placement: Placement, function: Any
) -> tuple[TrainState, Any]:
    """Guarded, compiled as the loop does."""
    state = placed(placement, random_state(config))
    batch = placement.place_batch(random_batch(batch=8))
    shardings = placement.shardings(state)
    step = jax.jit(
        placement.between_steps(
            functools.partial(guarded_step, functools.partial(function, config))
        ),
        donate_argnums=0,
        out_shardings=None if shardings is None else (shardings, placement.replicated()),
        compiler_options=QUICK_COMPILE,
    )
    with placement.in_force():
        compiled = step.lower(state, batch, jnp.float32(jnp.inf)).compile()
        for _ in range(2):
            state, metrics = compiled(state, batch, jnp.float32(jnp.inf))
    return state, metrics


def memories(tree: Any) -> set[str]:
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree) if leaf.shape}


@pytest.mark.parametrize(
    ("config", "sizes", "function"),
    [
        pytest.param(QUICK, {}, update_alone, id="update, one device"),
        pytest.param(QUICK, {"data": 2, "fsdp": 4}, update_alone, id="update, mesh"),
        pytest.param(QUICK, {}, train_step, id="step, one device", marks=pytest.mark.slow),
        pytest.param(
            MUON, {"data": 2, "fsdp": 4}, train_step, id="step, mesh", marks=pytest.mark.slow
        ),
    ],
)
def test_steps_with_moments_on_the_host_are_the_same_bit_for_bit(
    config: RunConfig, sizes: dict[str, int], function: Any
):
    mesh = build_mesh(MeshConfig(**sizes)) if sizes else None
    state, metrics = after_two_steps(config, Placement(config.model, mesh), function)
    assert memories(state.optimizer_state) == {"device"}
    on_host = Placement(config.model, mesh, offload_moments=True)
    offloaded, same = after_two_steps(config, on_host, function)
    assert memories(offloaded.optimizer_state) == {HOST_MEMORY}
    assert memories((offloaded.params, offloaded.balancing_optimizer_state)) == {"device"}
    if sizes:
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(offloaded), strict=True):
            assert a.sharding.is_equivalent_to(b.sharding.with_memory_kind("device"), a.ndim)
    left, right = jax.device_get(((state, metrics), (offloaded, same)))
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize(("saved_offloaded", "read_offloaded"), [(True, False), (False, True)])
def test_a_checkpoint_saved_with_offloading_is_read_without_it_and_the_other_way(
    tmp_path: Path, saved_offloaded: bool, read_offloaded: bool
):
    state = random_state(QUICK)
    writer = Placement(MODEL, None, offload_moments=saved_offloaded)
    saved = placed(writer, state)
    with CheckpointManager(tmp_path, CheckpointConfig()) as manager:
        manager.save(
            1, variables=saved.variables, training=training_part(saved), data={}, metadata={}
        )
        manager.wait()
        mesh = build_mesh(MeshConfig(fsdp=8))
        reader = Placement(MODEL, mesh, offload_moments=read_offloaded)
        template = reader.abstract(abstract_state(QUICK))
        found = manager.restore(1, template.variables, training_part(template))
    expected = HOST_MEMORY if read_offloaded else "device"
    assert memories(found.training["optimizer_state"]) == {expected}
    assert memories(found.variables) == {"device"}
    jax.tree.map(
        np.testing.assert_array_equal,
        (state.variables, training_part(state)),
        jax.device_get((found.variables, found.training)),
    )


def test_a_step_for_a_gpu_fetches_every_moment_and_sends_it_back():
    placement = plan_placement(
        MeshConfig(data=2),
        QUICK.model,
        batch_size=8,
        sequence_length=24,
        offload_moments=True,
    )
    state = placement.abstract(abstract_state(QUICK))
    batch = placement.abstract_batch(abstract_batch(QUICK.data))
    step = jax.jit(placement.between_steps(functools.partial(update_alone, QUICK)))
    with placement.in_force():
        text = step.trace(state, batch).lower(lowering_platforms=("cuda",)).as_text()
    moments = sum(bool(leaf.shape) for leaf in jax.tree.leaves(state.optimizer_state))
    assert text.count('_xla_buffer_placement = "device"') >= moments
    assert text.count('_xla_buffer_placement = "pinned_host"') >= moments
    assert text.count('mhlo.memory_kind = "pinned_host"') >= moments


@pytest.mark.parametrize(
    ("remat", "offload_moments", "setting", "mend"),
    [
        ("none", True, "optimizer.offload_state=True", "set it to False"),
        ("offload", False, "model.remat=offload", "set it to full"),
    ],
)
def test_devices_without_host_memory_are_refused_where_a_run_chooses_them(
    monkeypatch: pytest.MonkeyPatch, remat: str, offload_moments: bool, setting: str, mend: str
):
    monkeypatch.setattr("zaya_jax.training.offload.HOST_MEMORY", "lunar")
    message = (
        f"^{setting} keeps arrays in lunar memory, which devices of the cpu backend do not have "
        rf"\(they have device, pinned_host, .*\); {mend}$"
    )
    with pytest.raises(ConfigError, match=message):
        choose_placement(
            MeshConfig(data=1),
            MODEL.replace(remat=remat),
            batch_size=4,
            sequence_length=24,
            devices=jax.devices()[:1],
            offload_moments=offload_moments,
        )
