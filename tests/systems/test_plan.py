"""The plan gives published figures, its sizes are those of the real state, and it refuses well."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.training.tiny import RUN
from zaya_jax import presets
from zaya_jax.config import ConfigError, ModelConfig, RematPolicy
from zaya_jax.model.transformer import Transformer
from zaya_jax.model_size import flops_per_token
from zaya_jax.optimizer.settings import OptimizerKind
from zaya_jax.parallel.mesh import build_mesh
from zaya_jax.parallel.settings import MESH_AXES, MeshConfig
from zaya_jax.systems.hardware import hardware_names, load_hardware
from zaya_jax.systems.memory import (
    device_memory,
    host_bytes_per_token,
    kept_bytes_per_token,
    kept_outside_layers,
    leaf_sizes,
)
from zaya_jax.systems.mesh_search import best_meshes, evaluate
from zaya_jax.systems.plan import main
from zaya_jax.systems.step_time import layer_products
from zaya_jax.systems.storage import read_load, scatter_factor
from zaya_jax.systems.traffic import bytes_sent
from zaya_jax.training.loss import loss_sums
from zaya_jax.training.placement import Placement
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import abstract_batch, abstract_state

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "tests" / "experiments" / "tiny_config.py")
ONE = dict.fromkeys(MESH_AXES, 1)
HOST_SPACE = jax.memory.Space.Host
MI300X = load_hardware("mi300x")
LARGE = dataclasses.replace(
    RUN,
    model=presets.zaya1_8b(),
    optimizer=dataclasses.replace(RUN.optimizer, kind=OptimizerKind.MUON),
    data=dataclasses.replace(RUN.data, sequence_length=4_096, batch_size=4_096),
)


def test_the_published_storage_example():
    load = read_load(4_096, 4_096, 2.5)
    assert (load.bytes_per_step, load.pages_per_step) == (64 * 2**20, 16_384)
    assert round(load.reads_per_second) == 6_554
    assert round(load.break_even_seconds, 3) == 0.234
    scattered = read_load(4_096, 4_096, 2.5, scatter=8)
    assert scattered.break_even_seconds == pytest.approx(8 * load.break_even_seconds)
    assert scatter_factor(4, 4_096 * 4) == 2


def test_a_scatter_factor_below_one_is_refused():
    with pytest.raises(ConfigError, match=r"scatter=0\.5"):
        read_load(1, 1, 1.0, scatter=0.5)


def test_all_parameters_of_the_8b_model_are_counted():
    model = presets.zaya1_8b()
    balancing = model.num_layers * model.num_router_classes
    assert sum(leaf.numbers for leaf in leaf_sizes(model, ONE)) + balancing == 8_840_489_464


@pytest.mark.parametrize("kind", list(OptimizerKind))
def test_state_bytes_are_those_of_the_real_state(kind: OptimizerKind):
    config = dataclasses.replace(
        RUN,
        optimizer=dataclasses.replace(RUN.optimizer, kind=kind),
        data=dataclasses.replace(RUN.data, batch_size=8),
    )
    mesh = {**ONE, "fsdp": 4, "expert": 2}
    placement = Placement(RUN.model, build_mesh(MeshConfig(**mesh)))
    trees = (
        placement.abstract(abstract_state(config)),
        placement.abstract_batch(abstract_batch(config.data)),
    )
    found = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(trees)
    )
    assert device_memory(config, mesh).state == pytest.approx(found, abs=64)  # counters


def _kept_bytes(model: ModelConfig, rows: int, *, on_host: bool = False) -> int:
    """Of everything that the backward pass of the real loss reads, parameters included.

    On the device, or in host memory.
    """
    network = Transformer(model)
    numbers = jax.ShapeDtypeStruct((rows, 64), jnp.int32)
    batch = dict.fromkeys(("tokens", "targets", "positions", "segment_ids"), numbers)
    batch["loss_weights"] = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
    variables = jax.eval_shape(lambda x: network.init(jax.random.key(0), x), numbers)

    def backward(params: Any, balancing: Any, batch: Any) -> Any:
        return jax.vjp(lambda p: loss_sums(network, p, balancing, batch).objective, params)[1]

    traced = jax.jit(backward).trace(variables["params"], variables["balancing"], batch)
    kept = [x for x in traced.jaxpr.out_avals if (x.memory_space == HOST_SPACE) == on_host]
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in kept)


@pytest.mark.parametrize("remat", [RematPolicy.DOTS, RematPolicy.FULL, RematPolicy.OFFLOAD])
def test_kept_activations_are_those_of_the_real_backward_pass(remat: RematPolicy):
    model = RUN.model.replace(remat=remat)
    found = (_kept_bytes(model, 2) - _kept_bytes(model, 1)) / 64
    expected = model.num_layers * kept_bytes_per_token(model, ONE) + kept_outside_layers(model)
    assert found == pytest.approx(expected, abs=32)  # token ids and the loss' sums
    if remat is RematPolicy.OFFLOAD:
        found = (_kept_bytes(model, 2, on_host=True) - _kept_bytes(model, 1, on_host=True)) / 64
        assert found == model.num_layers * host_bytes_per_token(model)


def test_offloading_moves_moments_and_layer_inputs_to_the_host_and_costs_time():
    mesh = {**ONE, "data": 256, "fsdp": 4}
    full = dataclasses.replace(LARGE, model=LARGE.model.replace(remat="full"))
    inputs_there = dataclasses.replace(LARGE, model=LARGE.model.replace(remat="offload"))
    carried = 4 * (full.model.hidden_size + full.model.router_hidden_size)
    inputs = carried * full.model.num_layers * 4_096 * 4_096 // 1_024
    moments = evaluate(LARGE, mesh, MI300X).memory.optimizer
    for before, after, size in (
        (LARGE, offloading_moments(LARGE), moments),
        (full, inputs_there, inputs),
    ):
        plain, found = evaluate(before, mesh, MI300X), evaluate(after, mesh, MI300X)
        assert (plain.memory.on_host, found.memory.on_host) == (0, size)
        assert plain.memory.total - found.memory.total == size
        exchange = plain.time.exchange_seconds | {"host": 2 * size / 64e9}
        assert found.time.exchange_seconds == exchange
        assert found.time.slowest > plain.time.slowest


def test_moments_that_come_back_for_the_update_need_room():
    """Of a short batch little is freed for them."""
    short = dataclasses.replace(LARGE, data=dataclasses.replace(LARGE.data, batch_size=1))
    short = dataclasses.replace(
        short,
        data=dataclasses.replace(short.data, sequence_length=64),
        optimizer=dataclasses.replace(short.optimizer, kind=OptimizerKind.ADAMW),
    )
    memory = device_memory(offloading_moments(short), ONE)
    assert memory.total >= memory.parameters + memory.gradients + memory.host_optimizer


def offloading_moments(config: RunConfig) -> RunConfig:
    optimizer = dataclasses.replace(config.optimizer, offload_state=True)
    return dataclasses.replace(config, optimizer=optimizer)


def test_data_parallel_traffic_is_flat_in_the_number_of_devices():
    sent = [bytes_sent(LARGE, {**ONE, "data": n})["data"] for n in (8, 64, 1_024)]
    tied = 262_272 * 2_048  # gradients of lookup and head are summed one by one
    gradients = 4 * (8_840_489_464 + tied)
    assert sent[0] == pytest.approx(2 * 7 / 8 * gradients, rel=1e-6)
    assert sent[2] < 2 * gradients
    assert sent[2] / sent[1] < 1.02


def test_the_reported_step_lies_near_the_expected_one():
    """2.5 s for 4,096 sequences of 4,096 tokens; data parallel, Muon (arXiv 2605.05365)."""
    time = evaluate(LARGE, {**ONE, "data": 1_024}, MI300X).time
    assert time.fastest < 2.5
    assert time.slowest == pytest.approx(2.5, rel=0.25)
    assert time.bound == "matrix products"


def test_products_add_up_to_the_counted_flops():
    total = sum(p.flops * p.calls for p in layer_products(LARGE, {**ONE, "data": 1_024}))
    counted = flops_per_token(LARGE.model, 4_096) * 16_384
    assert total == pytest.approx(counted, rel=0.03)  # convolutions and the router's MLP


def test_meshes_that_fit_come_first_and_quickest_first():
    small = dataclasses.replace(LARGE, data=dataclasses.replace(LARGE.data, batch_size=256))
    found = best_meshes(small, 64, MI300X, count=4)
    assert all(one.fits for one in found)
    assert [one.time.slowest for one in found] == sorted(one.time.slowest for one in found)
    assert all(math.prod(one.mesh.values()) == 64 for one in found)


def test_where_nothing_fits_the_smallest_is_shown():
    found = best_meshes(LARGE, 1, MI300X, count=3)
    assert [one.fits for one in found] == [False]


def test_every_fact_about_hardware_has_a_source():
    for name in hardware_names():
        text = " ".join(load_hardware(name).sources)
        for field in ("achieved_bf16", "achieved_hbm", "achieved_fabric", "nic", "plateau"):
            assert field in text, (name, field)


def _json(capsys: pytest.CaptureFixture[str], *extra: str) -> dict[str, Any]:
    assert main(["--config", TINY, "--hardware", "h200", "--devices", "4", "--json", *extra]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_plans_the_mesh_it_is_given(capsys: pytest.CaptureFixture[str]):
    facts = _json(capsys, "--config.mesh.fsdp=2", "--tokens=1e6")
    assert [one["mesh"] for one in facts["meshes"]] == [{**ONE, "data": 2, "fsdp": 2}]
    assert facts["budget_tokens"] == 1e6
    tokens = facts["tokens_per_step"]
    steps = 1e6 / tokens
    slowest = facts["meshes"][0]["step_seconds"][1]
    assert facts["meshes"][0]["days"][1] == pytest.approx(steps * slowest / 86_400)
    state = facts["checkpoint"]["bytes"]
    assert state == pytest.approx(12 * facts["parameters"], rel=0.01)


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["--config", TINY, "--hardware", "h200", "--devices", "4"]) == 0
    text = capsys.readouterr().out
    for words in ("memory of one device", "tokens/s", "pages a step", "checkpoint"):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hardware", "mi100"], "--hardware='mi100' is none of: mi300x, mi350, h200"),
        (["--devices", "0"], "--devices=0: must be at least 1"),
        (["--devices", "7"], "no mesh divides data.batch_size=4"),
        (["--devices", str(10**20)], "must be 1 to 1,000,000"),
        (["--config.mesh.expert=3"], "does not fit 4 devices"),
    ],
)
def test_bad_input_is_one_error_that_names_it(arguments: list[str], message: str):
    with pytest.raises(ConfigError, match=message.split(":")[0].replace("'", ".")):
        main(["--config", TINY, "--hardware", "h200", "--devices", "4", *arguments])


@pytest.mark.slow
def test_the_compiled_step_has_the_planned_bytes_and_flat_traffic():
    sent = {}
    for devices in (2, 4):
        command = [sys.executable, "-m", "zaya_jax.systems.plan", "--config", TINY]
        command += ["--hardware", "mi300x", "--devices", str(devices), "--compile", "--json"]
        command += [f"--config.mesh.data={devices}"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        facts = json.loads(done.stdout)
        planned = facts["meshes"][0]["state_bytes"]
        assert facts["compiled"]["argument_bytes"] == pytest.approx(planned, rel=0.1)
        exchanges = facts["compiled"]["collectives"]
        reduced = [one for one in exchanges if one["axes"] == ["data"]]
        sent[devices] = sum(one["bytes_sent"] for one in reduced)
        assert sent[devices] == pytest.approx(facts["meshes"][0]["sent_bytes"]["data"], rel=0.1)
    assert sent[4] / sent[2] == pytest.approx((3 / 4) / (1 / 2), rel=0.02)  # payload is the same
