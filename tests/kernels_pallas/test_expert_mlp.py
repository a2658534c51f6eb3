"""The grouped forms of the expert feed-forward equal the dense one, values and every gradient."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas.expert_mlp import expert_mlp

EXPERTS, HIDDEN, WIDTH = 5, 8, 12
TOKENS = 131  # several row counts; divisible by none of them
GROUPED = ("bucketed", "ragged_dot")


def inputs(tokens: int, experts: int = EXPERTS, dtype=jnp.float32, seed: int = 0) -> tuple:
    keys = jax.random.split(jax.random.key(seed), 5)
    x = jax.random.normal(keys[0], (tokens, HIDDEN), dtype)
    gate = jax.random.uniform(keys[1], (tokens,))
    gate_up = jax.random.normal(keys[2], (experts, 2 * WIDTH, HIDDEN)) / HIDDEN**0.5
    down = jax.random.normal(keys[3], (experts, HIDDEN, WIDTH)) / WIDTH**0.5
    cotangent = jax.random.normal(keys[4], (tokens, HIDDEN), dtype)
    return (x, gate, gate_up, down), cotangent


@functools.partial(jax.jit, static_argnames=("dispatch", "implementation"))
def _values_and_gradients(class_index, arguments: tuple, cotangent, **form) -> tuple:
    out, pullback = jax.vjp(lambda x, *rest: expert_mlp(x, class_index, *rest, **form), *arguments)
    return out, *pullback(cotangent)


def run(class_index, arguments: tuple, cotangent, **form) -> tuple:
    """Output and gradients to x, gate, gate_up and down."""
    class_index = jnp.asarray(np.asarray(class_index), jnp.int32)
    return _values_and_gradients(class_index, arguments, cotangent, **form)


def assert_same(actual: tuple, expected: tuple, tolerance: float = 2e-6) -> None:
    names = ("out", "x", "gate", "gate_up", "down")
    for name, ours, oracle in zip(names, actual, expected, strict=True):
        assert ours.dtype == oracle.dtype
        a, b = np.asarray(ours, np.float64), np.asarray(oracle, np.float64)
        scale = max(np.abs(b).max(initial=0.0), 1e-30)
        np.testing.assert_allclose(a / scale, b / scale, atol=tolerance, rtol=0, err_msg=name)


def loads(tokens: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "balanced": rng.permutation(np.arange(tokens) % EXPERTS),
        "with_skips": rng.integers(0, EXPERTS + 1, tokens),
        "one_expert": np.full(tokens, 3),
        "all_skip": np.full(tokens, EXPERTS),
        "empty_experts": rng.choice([1, 4, EXPERTS], tokens),
        "half_and_rest": np.where(np.arange(tokens) < tokens // 2 + 1, 2, np.arange(tokens) % 5),
        "one_token_each": np.where(np.arange(tokens) < EXPERTS, np.arange(tokens), EXPERTS),
    }


def plain_numpy(class_index, x, gate, gate_up, down) -> np.ndarray:
    out = np.zeros(x.shape)
    for t, e in enumerate(class_index):
        if e < len(down):
            g, u = np.split(np.asarray(gate_up[e], np.float64) @ np.asarray(x[t], np.float64), 2)
            hidden = g / (1 + np.exp(-g)) * u
            out[t] = float(gate[t]) * (np.asarray(down[e], np.float64) @ hidden)
    return out


def test_dense_equals_a_loop_over_tokens_in_float64() -> None:
    arguments, cotangent = inputs(23)
    class_index = loads(23)["with_skips"]
    out = run(class_index, arguments, cotangent, dispatch="dense")[0]
    np.testing.assert_allclose(out, plain_numpy(class_index, *arguments), atol=1e-5)


@pytest.mark.parametrize("implementation", GROUPED)
@pytest.mark.parametrize("load", sorted(loads(TOKENS)))
def test_grouped_equals_dense_under_adversarial_loads(load: str, implementation: str) -> None:
    arguments, cotangent = inputs(TOKENS)
    class_index = loads(TOKENS)[load]
    actual = run(
        class_index, arguments, cotangent, dispatch="grouped", implementation=implementation
    )
    assert_same(actual, run(class_index, arguments, cotangent, dispatch="dense"))


@pytest.mark.parametrize("implementation", GROUPED)
@pytest.mark.parametrize("tokens", [0, 1, 2, 48])
def test_any_number_of_tokens(tokens: int, implementation: str) -> None:
    arguments, cotangent = inputs(tokens)
    class_index = np.random.default_rng(2).integers(0, EXPERTS + 1, tokens)
    actual = run(
        class_index, arguments, cotangent, dispatch="grouped", implementation=implementation
    )
    assert_same(actual, run(class_index, arguments, cotangent, dispatch="dense"))


@pytest.mark.parametrize("implementation", GROUPED)
def test_one_expert_and_the_skip_class(implementation: str) -> None:
    arguments, cotangent = inputs(20, experts=1)
    class_index = np.arange(20) % 2
    actual = run(
        class_index, arguments, cotangent, dispatch="grouped", implementation=implementation
    )
    assert_same(actual, run(class_index, arguments, cotangent, dispatch="dense"))
    assert (np.asarray(actual[0])[1::2] == 0).all()  # exactly zero, not merely small


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, EXPERTS), min_size=TOKENS, max_size=TOKENS))
def test_grouped_equals_dense_for_any_classes(class_index: list[int]) -> None:
    arguments, cotangent = inputs(TOKENS)
    actual = run(class_index, arguments, cotangent, dispatch="grouped", implementation="bucketed")
    assert_same(actual, run(class_index, arguments, cotangent, dispatch="dense"))


@pytest.mark.parametrize("implementation", GROUPED)
def test_gradients_equal_finite_differences(implementation: str) -> None:
    arguments, cotangent = inputs(17)
    class_index = jnp.asarray(loads(17)["with_skips"], jnp.int32)

    @jax.jit
    def objective(arguments):
        x, *rest = arguments
        form = {"dispatch": "grouped", "implementation": implementation}
        return jnp.sum(expert_mlp(x, class_index, *rest, **form) * cotangent)

    gradients = jax.grad(objective)(arguments)
    step = 1e-2
    for position in range(len(arguments)):
        direction = jax.random.normal(jax.random.key(position), arguments[position].shape)

        def moved(amount, position=position, direction=direction):
            changed = list(arguments)
            changed[position] = changed[position] + amount * direction
            return float(objective(tuple(changed)))

        slope = (moved(step) - moved(-step)) / (2 * step)
        expected = float(jnp.sum(gradients[position] * direction))
        assert slope == pytest.approx(expected, rel=5e-3, abs=5e-3)


@pytest.mark.parametrize("implementation", GROUPED)
def test_bfloat16_tokens_with_float32_weights(implementation: str) -> None:
    arguments, cotangent = inputs(TOKENS, dtype=jnp.bfloat16)
    class_index = loads(TOKENS)["with_skips"]
    actual = run(
        class_index, arguments, cotangent, dispatch="grouped", implementation=implementation
    )
    assert actual[0].dtype == actual[1].dtype == jnp.bfloat16
    assert actual[3].dtype == actual[4].dtype == jnp.float32
    expected = run(class_index, arguments, cotangent, dispatch="dense")
    assert_same(actual, expected, tolerance=2e-2)


def test_same_numbers_inside_scan_over_layers_with_remat() -> None:
    tokens, layers = 29, 3
    (x, gate, _, _), cotangent = inputs(tokens)
    stacked = [inputs(tokens, seed=seed)[0][2:] for seed in range(layers)]
    gate_up, down = (jnp.stack(a) for a in zip(*stacked, strict=True))
    class_index = jnp.asarray(
        np.random.default_rng(3).integers(0, EXPERTS + 1, (layers, tokens)), jnp.int32
    )

    def loss(dispatch: str, x, gate_up, down):
        @jax.checkpoint
        def layer(x, weights):
            class_index, gate_up, down = weights
            return x + expert_mlp(x, class_index, gate, gate_up, down, dispatch=dispatch), None

        return jnp.sum(jax.lax.scan(layer, x, (class_index, gate_up, down))[0] * cotangent)

    grouped, dense = (
        jax.jit(jax.grad(lambda *a, d=dispatch: loss(d, *a), (0, 1, 2)))(x, gate_up, down)
        for dispatch in ("grouped", "dense")
    )
    for a, b in zip(grouped, dense, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def test_loops_update_the_weight_gradients_in_place() -> None:
    arguments, cotangent = inputs(64)

    def values_and_gradients(class_index, arguments, cotangent):
        out, pullback = jax.vjp(
            lambda x, *rest: expert_mlp(
                x, class_index, *rest, dispatch="grouped", implementation="bucketed"
            ),
            *arguments,
        )
        return out, *pullback(cotangent)

    class_index = jnp.zeros(64, jnp.int32)
    lowered = jax.jit(values_and_gradients).lower(class_index, arguments, cotangent)
    text = lowered.compile().as_text()
    copies = re.findall(rf"= f32\[{EXPERTS},\d+,\d+\]\S* copy\(", text)
    assert not copies  # one copy per expert would cost more than the products


def test_unknown_forms_and_shapes_that_do_not_fit_are_named() -> None:
    (x, gate, gate_up, down), _ = inputs(4)
    class_index = jnp.zeros(4, jnp.int32)
    bare = getattr(expert_mlp, "__wrapped__", expert_mlp)  # without the annotation checks of tests
    with pytest.raises(ValueError, match="dispatch = 'sparse'"):
        bare(x, class_index, gate, gate_up, down, dispatch="sparse")
    with pytest.raises(ValueError, match="implementation = 'fast'"):
        bare(x, class_index, gate, gate_up, down, dispatch="grouped", implementation="fast")
    with pytest.raises(ValueError, match="do not fit together"):
        bare(x, class_index, gate, gate_up[:, 1:], down, dispatch="dense")
