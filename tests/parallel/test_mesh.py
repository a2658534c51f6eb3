"""Meshes are checked against devices, model and batch; arrays are split as the table says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.training.tiny import MODEL, RUN
from zaya_jax.checkpoint.layouts import transformers_layout
from zaya_jax.checkpoint.manager import CheckpointManager
from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.config import ConfigError
from zaya_jax.parallel.mesh import (
    AXIS_RULES,
    build_mesh,
    check_model_fits,
    current_mesh,
    partition_spec,
)
from zaya_jax.parallel.settings import MESH_AXES, MeshConfig
from zaya_jax.training.placement import Placement
from zaya_jax.training.shardings import tree_shardings, variable_specs
from zaya_jax.training.startup import training_part
from zaya_jax.training.state import abstract_state


def test_the_rest_of_the_devices_goes_to_the_axis_of_minus_one():
    assert MeshConfig(fsdp=2).sizes(8) == dict(zip(MESH_AXES, (4, 2, 1, 1, 1), strict=True))
    assert MeshConfig(data=1, tensor=-1).sizes(8)["tensor"] == 8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"fsdp": 3}, r"fsdp=3.*does not fit 8 devices"),
        ({"data": 2, "fsdp": 2}, "does not fit 8 devices"),
        ({"data": 16}, "does not fit 8 devices"),
    ],
)
def test_sizes_that_do_not_fit_the_devices_are_refused(sizes: dict[str, int], message: str):
    with pytest.raises(ConfigError, match=message):
        build_mesh(MeshConfig(**sizes))


@pytest.mark.parametrize("size", [0, -2])
def test_a_size_that_is_no_size_is_named(size: int):
    with pytest.raises(ConfigError, match=rf"mesh\.expert={size}"):
        MeshConfig(expert=size)


def test_only_one_axis_takes_the_rest():
    with pytest.raises(ConfigError, match="only one axis"):
        MeshConfig(data=-1, fsdp=-1)


@pytest.mark.parametrize(
    ("mesh", "changes", "message"),
    [
        ({}, {"batch": 12}, r"data\.batch_size=12: must be a multiple of .*, which is 8"),
        ({"data": 1, "context": 8}, {"sequence": 20}, r"data\.sequence_length=20"),
        ({"data": 1, "expert": 8}, {}, r"model\.num_experts=4: .*mesh\.expert, which is 8"),
        ({"data": 4, "tensor": 2}, {}, r"model\.num_kv_heads=1: .*mesh\.tensor"),
        (
            {"data": 1, "context": 8},
            {"sequence": 24},
            r"data\.sequence_length=24: .*2, which is 16",
        ),
        ({"data": 1, "context": 8}, {"sequence": 16}, "shorter than the 2 tokens"),
    ],
)
def test_a_model_that_a_mesh_cannot_split_is_refused(
    mesh: dict[str, int], changes: dict[str, int], message: str
):
    sizes = {"batch": 8, "sequence": 32} | changes
    with pytest.raises(ConfigError, match=message):
        check_model_fits(build_mesh(MeshConfig(**mesh)), MODEL, **sizes)


def test_rules_name_mesh_axes_and_use_each_once():
    with pytest.raises(ValueError, match="no mesh axis 'model'"):
        partition_spec(("vocab", "embed"), {"vocab": "model"})
    with pytest.raises(ValueError, match="'fsdp' would split two axes"):
        partition_spec(("vocab", "embed"), {"vocab": "fsdp", "embed": "fsdp"})


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False, "head_bias": True}])
def test_every_parameter_and_its_moments_are_split_alike(changes: dict[str, Any]):
    config = dataclasses.replace(RUN, model=MODEL.replace(**changes))
    state = abstract_state(config)
    mesh = build_mesh(MeshConfig(data=1, fsdp=2, expert=2, tensor=2))
    shardings = tree_shardings(state, config.model, mesh)
    specs = variable_specs(config.model)
    for tree in (
        shardings.params,
        shardings.optimizer_state[1].mu,
        shardings.optimizer_state[1].nu,
    ):
        for path, sharding in jax.tree_util.tree_flatten_with_path(tree)[0]:
            assert sharding.spec == specs[("params", *(key.key for key in path))]
    experts = shardings.params["layers"]["experts"]
    assert experts["gate_up"].spec == PartitionSpec(None, "expert", "tensor", "fsdp")
    assert shardings.step.spec == PartitionSpec()


def test_all_logical_axes_of_the_table_exist():
    used = {axis for rule in transformers_layout(MODEL) for axis in rule.axes}
    assert set(AXIS_RULES) <= used


def test_there_is_no_mesh_until_one_is_set():
    assert current_mesh() is None
    with Placement(MODEL, build_mesh(MeshConfig())).in_force():
        mesh = current_mesh()
        assert mesh is not None
        assert mesh.shape["data"] == 8
    assert current_mesh() is None


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 2, 4, 1, 1), (2, 2, 1, 2, 1)]
)
def test_a_checkpoint_of_one_mesh_is_read_onto_another_bit_equal(
    tmp_path: Path, sizes: tuple[int, ...]
):
    random = np.random.default_rng(0)
    shapes = abstract_state(RUN)
    state = jax.tree.map(lambda x: random.integers(0, 100, x.shape).astype(x.dtype), shapes)
    writer = Placement(MODEL, _mesh((2, 4, 1, 1, 1)))
    saved = jax.device_put(state, writer.shardings(state))
    with CheckpointManager(tmp_path, CheckpointConfig()) as manager:
        manager.save(
            1, variables=saved.variables, training=training_part(saved), data={}, metadata={}
        )
        manager.wait()
        reader = Placement(MODEL, _mesh(sizes))
        template = reader.abstract(shapes)
        found = manager.restore(1, template.variables, training_part(template))
    for left, right, wanted in zip(
        jax.tree.leaves((state.variables, training_part(state))),
        jax.tree.leaves((found.variables, found.training)),
        jax.tree.leaves((template.variables, training_part(template))),
        strict=True,
    ):
        assert right.sharding == wanted.sharding
        np.testing.assert_array_equal(np.asarray(right), left)


def _mesh(sizes: tuple[int, ...]) -> jax.sharding.Mesh:
    config = MeshConfig(**dict(zip(MESH_AXES, sizes, strict=True)))
    return build_mesh(config, jax.devices()[: int(np.prod(sizes))])


def test_one_device_needs_no_mesh():
    placement = Placement(MODEL, None)
    tree = {"params": jnp.zeros(3)}
    assert placement.abstract(tree) is tree
    assert placement.shardings(tree) is None
    with placement.in_force():
        assert current_mesh() is None
