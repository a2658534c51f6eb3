"""On every mesh a step gives what it gives on one device.

By default: every gradient on one mesh of three axes, loss and routing on another. With `-m slow`:
the whole step, on each axis alone and on both meshes.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.tiny import RUN
from zaya_jax.config import ExpertDispatch, LayerType
from zaya_jax.model.transformer import Transformer
from zaya_jax.optimizer.groups import ParameterKind, parameter_kind
from zaya_jax.parallel.mesh import build_mesh
from zaya_jax.parallel.settings import MESH_AXES, MeshConfig
from zaya_jax.systems.hlo_traffic import computations, group_of
from zaya_jax.training.loss import loss_sums
from zaya_jax.training.placement import Placement
from zaya_jax.training.state import abstract_state
from zaya_jax.training.step import train_step

BATCH, SEQ = 8, 24
MODEL = RUN.model.replace(
    num_query_heads=8,
    num_kv_heads=4,
    head_dim=4,
    depthwise_conv_width=3,
    layer_pattern=(LayerType.SLIDING, LayerType.FULL),
    sliding_window=7,
    head_bias=True,
    attention_bias=True,
)
CONFIG = dataclasses.replace(
    RUN,
    model=MODEL,
    data=dataclasses.replace(RUN.data, batch_size=BATCH, sequence_length=SEQ),
    # Adam divides by |gradient|: where that is rounding, so would the update be.
    optimizer=dataclasses.replace(RUN.optimizer, epsilon=1e-2),
)
# Experts compile sooner in the dense form; how tokens reach them over the mesh is the same.
QUICK_MODEL = Transformer(MODEL.replace(expert_dispatch=ExpertDispatch.DENSE))


def _loss(params: Any, balancing: Any, batch: Any) -> Any:
    sums = loss_sums(QUICK_MODEL, params, balancing, batch)
    return sums.objective, sums


def _step_parts(state: Any, batch: Any) -> Any:
    return _loss(state.params, state.balancing, batch)


def _gradients(state: Any, batch: Any) -> Any:
    return jax.grad(_loss, has_aux=True)(state.params, state.balancing, batch)


# What is compared, from the quickest to compile to the slowest. The new state of a whole step holds
# the gradients too: Adam's first moment is a tenth of them.
FORWARD, GRADIENTS, STEP = (
    jax.jit(f) for f in (_step_parts, _gradients, functools.partial(train_step, CONFIG))
)
SPREAD = {"fsdp": 2, "expert": 2, "context": 2}
SPLIT = {"fsdp": 2, "tensor": 2, "expert": 2}
MESHES = [
    SPREAD,
    SPLIT,
    {"data": 2, "expert": 2, "context": 2},
    {"data": 2},
    {"fsdp": 2},
    {"expert": 2},
    {"context": 2},
    {"tensor": 2},
    {"data": 4},
    {"fsdp": 4},
    {"expert": 4},
    {"context": 4},
    {"tensor": 4},
]


def _batch() -> dict[str, np.ndarray]:
    """Packed rows: segments of one, two and many tokens, also across borders; some padding."""
    random = np.random.default_rng(0)
    segments = np.stack(
        [np.repeat([1, 2, 3, 4, 0], [1, 2, 13 - row, 7 - row, 1 + 2 * row]) for row in range(4)] * 2
    )
    positions = np.zeros_like(segments)
    for at in range(1, SEQ):
        same = segments[:, at] == segments[:, at - 1]
        positions[:, at] = np.where(same & (segments[:, at] > 0), positions[:, at - 1] + 1, 0)
    return {
        "tokens": random.integers(0, 260, (BATCH, SEQ), dtype=np.int32),
        "targets": random.integers(0, 260, (BATCH, SEQ), dtype=np.int32),
        "positions": positions.astype(np.int32),
        "segment_ids": segments.astype(np.int32),
        "loss_weights": (segments > 0).astype(np.float32),
    }


@functools.cache
def _state() -> Any:
    """Skewed routing, with some tokens on the skip class."""
    random = np.random.default_rng(1)

    def filled(path: Any, leaf: Any) -> np.ndarray:
        names = tuple(key.key for key in path)
        if parameter_kind(names) is not ParameterKind.VECTOR:
            return random.normal(scale=0.3, size=leaf.shape).astype(leaf.dtype)
        mean = 0.0 if names[-1].endswith("bias") else 1.0
        return random.normal(mean, 0.1, leaf.shape).astype(leaf.dtype)

    shapes = abstract_state(CONFIG)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    params = jax.tree_util.tree_map_with_path(filled, shapes.params)
    biases = jnp.tile(jnp.asarray([0.03, 0.0, -0.01, 0.0, 0.01]), (MODEL.num_layers, 1))
    return dataclasses.replace(state, params=params, balancing={"biases": biases})


@functools.cache
def _on_one_device(function: Any) -> Any:
    return jax.device_get(function(_state(), _batch()))


@functools.cache
def _on_mesh(function: Any, sizes: tuple[tuple[str, int], ...]) -> tuple[str, Any]:
    """The compiled program as text, and what it computes."""
    count = int(np.prod([size for _, size in sizes]))
    mesh = build_mesh(MeshConfig(**{"data": 1} | dict(sizes)), jax.devices()[:count])
    placement = Placement(MODEL, mesh)
    state = jax.device_put(_state(), placement.shardings(_state()))
    batch = placement.place_batch(_batch())
    with placement.in_force():
        compiled = function.lower(state, batch).compile()
    return compiled.as_text(), jax.device_get(compiled(state, batch))


def _results(program: str, operation: str) -> set[str]:
    """Shapes of the results of an operation, like `f32[2,24,16]`."""
    pattern = rf"= \(?(\w+\[[\d,]*\])[^=]*? {operation}(?:-start)?\("
    return set(re.findall(pattern, program))


def _needed_for(lines: list[str], line: str) -> list[str]:
    """The operations of a computation that one of them waits for, parameters left out."""
    name = re.compile(r"%[\w.\-]+")
    defined = {name.search(one).group(): one for one in lines if " = " in one}  # type: ignore[union-attr]
    found: dict[str, str] = {}
    waiting = [line]
    while waiting:
        operands = name.findall(waiting.pop().split(" = ", 1)[1].split("), ", 1)[0])
        for operand in set(operands) & set(defined) - set(found):
            if " parameter(" not in defined[operand]:
                found[operand] = defined[operand]
                waiting.append(defined[operand])
    return list(found.values())


def test_the_batch_reaches_the_skip_class_and_several_experts():
    counts = _on_one_device(GRADIENTS)[1].class_counts
    assert (counts[:, -1] > 0).any()
    assert ((counts[:, :-1] > 0).sum(axis=1) >= 2).all()


def _check_mesh(function: Any, sizes: dict[str, int]) -> None:
    expected, found = _on_one_device(function), _on_mesh(function, tuple(sizes.items()))[1]
    for (path, left), right in zip(
        jax.tree_util.tree_flatten_with_path(expected)[0], jax.tree.leaves(found), strict=True
    ):
        scale = max(float(np.abs(left).max(initial=0.0)), 1e-3)
        np.testing.assert_allclose(
            right / scale, left / scale, atol=3e-5, rtol=0, err_msg=jax.tree_util.keystr(path)
        )


def test_gradients_on_several_axes_are_those_of_one_device():
    _check_mesh(GRADIENTS, SPREAD)


def test_loss_and_routing_on_split_weights_are_those_of_one_device():
    _check_mesh(FORWARD, SPLIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", MESHES, ids=lambda sizes: "-".join(f"{axis}{size}" for axis, size in sizes.items())
)
def test_a_whole_step_is_that_of_one_device(sizes: dict[str, int]):
    _check_mesh(STEP, sizes)


def test_tokens_travel_to_experts_and_halos_to_neighbours_and_no_sequence_is_gathered():
    program, _ = _on_mesh(GRADIENTS, tuple(SPREAD.items()))
    rows, tokens = BATCH // 4, BATCH // 4 * SEQ // 2
    halo = MODEL.depthwise_conv_width + MODEL.grouped_conv_width - 2
    channels = MODEL.query_size + MODEL.kv_size
    assert any(
        f"[{tokens}," in shape or f",{tokens}," in shape
        for shape in _results(program, "all-to-all")
    )
    assert f"f32[{rows},{halo},{channels}]" in _results(program, "collective-permute")
    gathered = _results(program, "all-gather")
    assert f"f32[{rows},{SEQ},{MODEL.num_kv_heads},{MODEL.head_dim}]" in gathered
    assert not any(f",{SEQ},{MODEL.hidden_size}]" in shape for shape in gathered)


def test_parameters_are_gathered_one_layer_at_a_time():
    program, _ = _on_mesh(FORWARD, tuple(SPLIT.items()))
    experts, width = MODEL.num_experts // 2, MODEL.expert_intermediate_size // 2
    gathered = _results(program, "all-gather")
    assert f"f32[{experts},{MODEL.hidden_size},{width}]" in gathered
    stacked = {
        str(leaf.shape).replace(" ", "")[1:-1]
        for leaf in jax.tree.leaves(_state().params["layers"])
        if leaf.ndim > 2
    }
    assert not any(f"[{shape}]" in result for shape in stacked for result in gathered)


def test_the_loop_over_layers_keeps_no_experts_for_the_backward_pass():
    """What a device makes of its experts would be as large as all layers' experts together."""
    mesh = build_mesh(MeshConfig(**SPREAD), jax.devices()[:8])
    model, state = Transformer(MODEL), _state()

    def loss(params: Any, batch: Any) -> Any:
        return loss_sums(model, params, state.balancing, batch).objective

    with Placement(MODEL, mesh).in_force():
        jaxpr = jax.make_jaxpr(jax.grad(loss))(state.params, _batch()).jaxpr
    forward = [loop for loop in _loops(jaxpr) if not loop.params["reverse"]]
    hidden, width = MODEL.hidden_size, MODEL.expert_intermediate_size
    kept = [out.aval.shape[-2:] for loop in forward for out in loop.outvars]
    assert len(kept) > 10
    assert not {(2 * width, hidden), (hidden, width)} & set(kept)


def _loops(jaxpr: Any) -> Iterator[Any]:
    """The outermost loops over layers."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan" and equation.params["length"] == MODEL.num_layers:
            yield equation
        else:
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from _loops(inner)


@pytest.mark.parametrize(("function", "sizes"), [(GRADIENTS, SPREAD), (FORWARD, SPLIT)])
def test_a_layers_parameters_are_gathered_without_waiting_for_activations(
    function: Any, sizes: dict[str, int]
):
    """So a scheduler may gather them while what comes before them computes.

    CPU programs have no asynchronous exchanges: this shows that nothing stands in their way.
    """
    mesh = {axis: sizes.get(axis, 1) for axis in MESH_AXES}
    rows, tokens = BATCH // 4, SEQ // mesh["context"] // mesh["tensor"]
    activations = re.compile(rf" = \(?\w+\[(?:{rows},(?:{tokens}|{SEQ})|{rows * tokens}),")
    bodies, entry = computations(_on_mesh(function, tuple(sizes.items()))[0])
    gathers = 0
    for lines in (lines for name, lines in bodies.items() if name != entry):
        for line in (line for line in lines if " all-gather(" in line):
            if group_of(line, "all-gather", mesh)[0] == ("fsdp",):
                gathers += 1
                for needed in _needed_for(lines, line):
                    assert not activations.search(needed), f"{line} waits for {needed}"
                    assert not re.search(r" (dot|call|while|all-reduce)\(", needed)
    assert gathers > 10  # one for each parameter of a layer
