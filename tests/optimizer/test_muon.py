"""Muon against a float64 reference, and the mistakes that are easy to make with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kernels_pallas.backend import INTERPRETER, KernelError, compile_for
from tests.optimizer.muon_reference import Reference, orthogonalize
from zaya_jax import presets
from zaya_jax.model.transformer import Transformer
from zaya_jax.optimizer import newton_schulz
from zaya_jax.optimizer.create import create_optimizer
from zaya_jax.optimizer.groups import optimizer_groups
from zaya_jax.optimizer.muon import muon
from zaya_jax.optimizer.settings import OptimizerConfig

RATE, DECAY = 0.01, 0.1
CONFIG = OptimizerConfig(
    kind="muon",
    schedule="constant",
    peak_learning_rate=RATE,
    warmup_steps=0,
    weight_decay=DECAY,
    clip_norm=0.0,
)
PLAIN = dataclasses.replace(CONFIG, muon_momentum=0.0, weight_decay=0.0)
SHAPES = [(8, 8), (4, 12), (12, 4), (1, 6), (6, 1), (64, 24)]


def _random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _after_steps(config: OptimizerConfig, params: dict, gradients: list[dict]) -> dict:
    optimizer = muon(config, 10)

    @jax.jit
    def step(params: dict, state: optax.OptState, gradient: dict) -> tuple[dict, optax.OptState]:
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params


def _matrix(array: np.ndarray, name: str = "weight") -> dict:
    return {"fc": {name: jnp.asarray(array)}}


def test_the_kernels_take_stacks_of_any_depth_and_zero_matrices():
    matrices = jax.random.normal(jax.random.key(0), (2, 2, 5, 3)).at[0, 1].set(0.0)

    def run(implementation):
        return jax.jit(
            lambda x: newton_schulz.orthogonalize(x, steps=2, implementation=implementation)
        )(matrices)

    with compile_for(INTERPRETER):
        found = run("pallas")
    np.testing.assert_allclose(found, run("xla"), atol=1e-5)


def test_the_kernels_do_not_run_on_matrices_that_a_mesh_splits():
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    with jax.set_mesh(mesh), pytest.raises(KernelError, match="on a mesh, where matrices stay"):
        newton_schulz.orthogonalize(jnp.ones((3, 2)), implementation="pallas")


@pytest.mark.parametrize("shape", SHAPES)
def test_newton_schulz_agrees_with_float64(shape: tuple[int, int]):
    matrix = _random(shape)
    result = newton_schulz.orthogonalize(jnp.asarray(matrix))
    np.testing.assert_allclose(result, orthogonalize(matrix), atol=2e-5)


def test_singular_values_end_near_one_for_any_scale():
    for scale in (1e-25, 1.0, 1e18):
        matrix = _random((16, 40)) * np.float32(scale)
        result = newton_schulz.orthogonalize(jnp.asarray(matrix))
        values = np.linalg.svd(np.asarray(result), compute_uv=False)
        assert values.min() > 0.6
        assert values.max() < 1.25


def test_bfloat16_products_stay_close_and_return_float32():
    matrix = _random((32, 48))
    result = newton_schulz.orthogonalize(jnp.asarray(matrix), dtype=jnp.bfloat16)
    assert result.dtype == jnp.float32
    exact = orthogonalize(matrix)
    cosine = np.sum(result * exact) / np.linalg.norm(result) / np.linalg.norm(exact)
    assert cosine > 0.995
    values = np.linalg.svd(np.asarray(result), compute_uv=False)
    assert values.min() > 0.6
    assert values.max() < 1.25


@pytest.mark.parametrize("shape", [(8, 8), (4, 12), (12, 4), (64, 24)])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.95, True), (0.9, False), (0.0, False)])
def test_updates_equal_the_reference(shape: tuple[int, int], momentum: float, nesterov: bool):
    weight, gradients = _random(shape), [_random(shape, seed) for seed in (1, 2, 3)]
    config = dataclasses.replace(CONFIG, muon_momentum=momentum, muon_nesterov=nesterov)
    result = _after_steps(config, _matrix(weight), [_matrix(g) for g in gradients])
    reference = Reference(weight, momentum=momentum, nesterov=nesterov, rate=RATE, decay=DECAY)
    for gradient in gradients:
        reference.step(gradient)
    np.testing.assert_allclose(result["fc"]["weight"], reference.weight, atol=3e-6)


def test_a_stack_of_layers_and_experts_equals_its_matrices_one_by_one():
    """Not one big matrix, and not AdamW for having four axes."""
    weight, gradients = _random((2, 3, 8, 12)), [_random((2, 3, 8, 12), s) for s in (1, 2)]
    result = _after_steps(CONFIG, _matrix(weight, "down"), [_matrix(g, "down") for g in gradients])
    for index in np.ndindex(2, 3):
        one = Reference(weight[index], momentum=0.95, nesterov=True, rate=RATE, decay=DECAY)
        for gradient in gradients:
            one.step(gradient[index])
        np.testing.assert_allclose(result["fc"]["down"][index], one.weight, atol=3e-6)


def _model_params() -> dict:
    config = presets.nano().replace(tie_embeddings=False, head_bias=True, attention_bias=True)
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens)["params"]


def test_the_partition_of_the_real_model():
    """Rank would send stacked norms and the embedding to Muon and the experts to AdamW."""
    groups = optimizer_groups(_model_params(), muon=True)
    matrices = {name.split("/", 1)[-1] for name in groups["Muon, decayed"]}
    expected = {f"attention/{n}/weight" for n in ("query", "key", "output")}
    expected |= {f"attention/value_{n}/weight" for n in ("current", "delayed")}
    expected |= {f"router/{n}/weight" for n in ("down", "fc1", "fc2", "out")}
    assert matrices == expected | {"experts/gate_up", "experts/down"}
    others = {name.split("/", 1)[-1] for name in groups["AdamW, decayed"]}
    assert others == {"embedding", "head_weight", "attention/grouped_conv"}
    assert set(groups) == {"Muon, decayed", "AdamW, decayed", "AdamW, not decayed"}


def test_the_update_is_as_large_as_adamws():
    """0.2 sqrt(max) on singular values of about 0.85: root mean square near 0.17."""
    for shape in ((64, 64), (32, 128), (128, 32)):
        zeros = _matrix(np.zeros(shape, np.float32))
        moved = _after_steps(PLAIN, zeros, [_matrix(_random(shape))])["fc"]["weight"] / RATE
        rms = float(jnp.sqrt(jnp.mean(jnp.square(moved))))
        expected = 0.2 * 0.85 * np.sqrt(min(shape) * max(shape) / (shape[0] * shape[1]))
        assert rms == pytest.approx(expected, rel=0.15), shape


def test_gate_and_up_are_one_matrix_unless_split():
    gradient = _random((2, 16, 12))
    zeros = _matrix(np.zeros_like(gradient), "gate_up")
    fused = _after_steps(PLAIN, zeros, [_matrix(gradient, "gate_up")])["fc"]["gate_up"]
    expected = np.stack([-RATE * 0.2 * 4.0 * orthogonalize(g) for g in gradient])
    np.testing.assert_allclose(fused, expected, atol=3e-6)

    config = dataclasses.replace(PLAIN, muon_split_gate_up=True)
    split = _after_steps(config, zeros, [_matrix(gradient, "gate_up")])["fc"]["gate_up"]
    halves = [
        [-RATE * 0.2 * np.sqrt(12) * orthogonalize(half) for half in (g[:8], g[8:])]
        for g in gradient
    ]
    np.testing.assert_allclose(split, np.reshape(halves, gradient.shape), atol=3e-6)


def test_nesterov_does_not_reach_the_adamw_half():
    params = {"fc": {"weight": jnp.ones((4, 4)), "bias": jnp.ones((4,))}}
    gradients = {"fc": {"weight": jnp.ones((4, 4)), "bias": jnp.full((4,), 3.0)}}
    bias = _after_steps(CONFIG, params, [gradients])["fc"]["bias"]
    np.testing.assert_allclose(bias, 1.0 - RATE, rtol=1e-5)  # NAdam's would be 1.47 times as far


def test_decay_reaches_both_halves_but_no_vector():
    params = {
        "fc": {"weight": jnp.ones((4, 4)), "bias": jnp.ones((4,))},
        "embedding": jnp.ones((5, 4)),
    }
    # A gradient somewhere else, so that the step is not skipped.
    gradients = jax.tree.map(jnp.zeros_like, params) | {
        "embedding": jnp.zeros((5, 4)).at[0, 0].set(1.0)
    }
    result = _after_steps(CONFIG, params, [gradients])
    np.testing.assert_allclose(result["fc"]["weight"], 1 - RATE * DECAY, rtol=1e-6)
    np.testing.assert_allclose(result["embedding"][1:], 1 - RATE * DECAY, rtol=1e-6)
    np.testing.assert_array_equal(result["fc"]["bias"], 1.0)


@pytest.mark.parametrize("momentum", [0.95, 0.0])
def test_a_step_without_gradient_changes_nothing(momentum: float):
    config = dataclasses.replace(CONFIG, muon_momentum=momentum)
    params = {"fc": {"weight": jnp.asarray(_random((4, 4))), "bias": jnp.ones((4,))}}
    gradients = jax.tree.map(jnp.ones_like, params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    optimizer = muon(config, 10)
    _, state = optimizer.update(gradients, optimizer.init(params), params)
    updates, after = optimizer.update(zeros, state, params)
    jax.tree.map(lambda u: np.testing.assert_array_equal(u, 0.0), updates)
    jax.tree.map(np.testing.assert_array_equal, state[0], after[0])


def test_an_expert_without_gradient_stays_whatever_its_momentum():
    first, second = _random((2, 4, 4), 1), _random((2, 4, 4), 2)
    second[0] = 0.0
    config = dataclasses.replace(CONFIG, weight_decay=0.0)
    start = _matrix(_random((2, 4, 4)), "down")
    once = _after_steps(config, start, [_matrix(first, "down")])
    twice = _after_steps(config, start, [_matrix(first, "down"), _matrix(second, "down")])
    np.testing.assert_array_equal(once["fc"]["down"][0], twice["fc"]["down"][0])
    assert np.abs(np.asarray(once["fc"]["down"][1] - twice["fc"]["down"][1])).max() > 0.1 * RATE


def test_rounding_noise_is_not_blown_up_to_a_full_update():
    zeros = _matrix(np.zeros((8, 8), np.float32))
    noise = _matrix(_random((8, 8)) * np.float32(1e-13))
    np.testing.assert_array_equal(_after_steps(PLAIN, zeros, [noise])["fc"]["weight"], 0.0)
    small = _matrix(_random((8, 8)) * np.float32(1e-8))
    moved = _after_steps(PLAIN, zeros, [small])["fc"]["weight"]
    full = _after_steps(PLAIN, zeros, [_matrix(_random((8, 8)))])["fc"]["weight"]
    np.testing.assert_allclose(moved, full, rtol=1e-3, atol=1e-6)


def _sizes(config: OptimizerConfig, params: dict) -> int:
    state = jax.eval_shape(create_optimizer(config, 10).init, params)
    return sum(leaf.size for leaf in jax.tree.leaves(state))


def test_momentum_free_muon_keeps_no_buffer_and_momentum_one_copy():
    params = {"fc": {"down": jnp.zeros((3, 16, 16)), "bias": jnp.zeros((16,))}}
    counts = 2  # of updates: one of Adam's, one of the schedule's
    assert _sizes(PLAIN, params) == 2 * 16 + counts
    assert _sizes(CONFIG, params) == 2 * 16 + 3 * 16 * 16 + counts
    adamw = dataclasses.replace(CONFIG, kind="adamw")
    assert _sizes(adamw, params) == 2 * (16 + 3 * 16 * 16) + counts


def _memory(config: OptimizerConfig, params: dict) -> Any:
    optimizer = muon(config, 10)

    def update(params: dict, state: optax.OptState, gradients: dict) -> tuple[dict, optax.OptState]:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    step = jax.jit(update, donate_argnums=(0, 1)).lower(params, optimizer.init(params), params)
    return step.compile().memory_analysis()


def test_the_update_is_in_place_and_iterations_reuse_their_memory():
    config = dataclasses.replace(CONFIG, clip_norm=1.0)
    params = _matrix(np.zeros((4, 128, 128), np.float32), "down")
    size = params["fc"]["down"].nbytes
    five, ten = (_memory(dataclasses.replace(config, muon_steps=n), params) for n in (5, 10))
    assert five.alias_size_in_bytes >= 2 * size
    assert ten.temp_size_in_bytes <= five.temp_size_in_bytes + 4096
