"""A training step runs every kernel it has a use for, on one device and inside a mesh."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from kernels_pallas.backend import INTERPRETER, KernelError, Target, compile_for
from kernels_pallas.machine_code import triton_kernels
from tests.training.tiny import RUN, random_batch
from zaya_jax.config import ModelConfig
from zaya_jax.parallel.mesh import build_mesh
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.training.placement import Placement
from zaya_jax.training.state import abstract_state, init_state, seed_key_data
from zaya_jax.training.step import train_step

FORWARD = {"norm_forward", "cca_forward", "attention_forward", "expert_gate_up", "expert_down"}
BACKWARD = {"norm_backward", "cca_dy", "cca_du", "cca_dweights", "attention_dq", "attention_dkv"}
BACKWARD |= {"expert_dgate_up", "expert_dx", "expert_dweights"}
LOSS = {"head_statistics", "head_dlogits"}


def run_with(**changes: Any) -> Any:
    model: ModelConfig = RUN.model.replace(**changes)
    return dataclasses.replace(RUN, model=model)


def kernels_of(run: Any, target: str, placement: Placement) -> set[str]:
    """Names of the kernels in a step's program, lowered for a GPU that is not here."""
    state = placement.abstract(abstract_state(run))
    batch = placement.abstract_batch(random_batch(batch=8))
    step = functools.partial(train_step, run)
    with compile_for(Target(target)), placement.in_force():
        return {name for name, *_ in triton_kernels(step, state, batch, target=target)}


def mesh_of(**sizes: int) -> Placement:
    count = int(np.prod(list(sizes.values())))
    mesh = build_mesh(MeshConfig(**{"data": 1, **sizes}), jax.devices()[:count])
    return Placement(RUN.model, mesh)


def test_on_a_mesh_each_device_runs_the_kernels() -> None:
    placement = mesh_of(data=2, expert=2, context=2)
    assert kernels_of(RUN, "mi300x", placement) == FORWARD | BACKWARD | LOSS


@pytest.mark.slow
@pytest.mark.parametrize("target", ["mi300x", "h200"])
def test_on_one_device_it_runs_the_kernels(target: str) -> None:
    one = Placement(RUN.model, None)
    muon = dataclasses.replace(RUN.optimizer, kind="muon")
    by_muon = dataclasses.replace(run_with(kernels="pallas"), optimizer=muon)
    newton_schulz = {"symmetric_product", "matrix_step"}
    assert kernels_of(by_muon, target, one) == FORWARD | BACKWARD | LOSS | newton_schulz
    assert kernels_of(run_with(kernels="xla"), target, one) == set()


def test_kernels_that_cannot_run_here_are_refused() -> None:
    step = functools.partial(train_step, run_with(kernels="pallas"))
    with pytest.raises(KernelError, match="cca_mix: implementation='pallas' needs a GPU"):
        jax.eval_shape(step, abstract_state(RUN), random_batch())


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{}, {"expert": 2, "context": 2}], ids=["one device", "mesh"])
def test_a_step_by_the_kernels_gives_the_numbers_of_xla(sizes: dict[str, int]) -> None:
    # Adam divides by |gradient|: where that is rounding, so would the update be.
    optimizer = dataclasses.replace(RUN.optimizer, epsilon=1e-2)
    by_xla, by_kernels = (
        dataclasses.replace(run_with(kernels=name), optimizer=optimizer)
        for name in ("xla", "pallas")
    )
    state = jax.jit(functools.partial(init_state, by_xla))(seed_key_data(0))
    expected = jax.device_get(jax.jit(functools.partial(train_step, by_xla))(state, random_batch()))
    placement = mesh_of(**sizes) if sizes else Placement(RUN.model, None)
    if sizes:
        state = jax.device_put(state, placement.shardings(state))
    with compile_for(INTERPRETER), placement.in_force():
        step = jax.jit(functools.partial(train_step, by_kernels))
        found = jax.device_get(step(state, placement.place_batch(random_batch())))
    for (path, left), right in zip(
        jax.tree_util.tree_flatten_with_path(expected)[0], jax.tree.leaves(found), strict=True
    ):
        scale = max(float(np.abs(left).max(initial=0.0)), 1e-3)
        np.testing.assert_allclose(
            right / scale, left / scale, atol=3e-5, rtol=0, err_msg=jax.tree_util.keystr(path)
        )
