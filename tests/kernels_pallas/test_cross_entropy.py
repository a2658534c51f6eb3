"""The fused head and loss equal the plain definition and never build all logits."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas import cross_entropy

TOKENS, HIDDEN, VOCAB = 23, 6, 11

# Compiled: one program is quicker than the many small ones of eager calls.
definition = jax.jit(cross_entropy.definition, static_argnames="z_loss_weight")
linear_cross_entropy = jax.jit(
    cross_entropy.linear_cross_entropy, static_argnames=("z_loss_weight", "chunk_size")
)


def inputs(*, bias: bool = True, dtype=jnp.float32, tokens: int = TOKENS) -> tuple:
    keys = jax.random.split(jax.random.key(0), 5)
    hidden = jax.random.normal(keys[0], (tokens, HIDDEN), dtype)
    weight = jax.random.normal(keys[1], (VOCAB, HIDDEN))
    bias_row = jax.random.normal(keys[2], (VOCAB,)) if bias else None
    targets = jax.random.randint(keys[3], (tokens,), 0, VOCAB)
    token_weights = jax.random.uniform(keys[4], (tokens,)).at[::4].set(0.0)
    return hidden, weight, bias_row, targets, token_weights


def float64_sums(hidden, weight, bias, targets, token_weights, z_loss_weight) -> tuple:
    hidden, weight, w = (np.asarray(a, np.float64) for a in (hidden, weight, token_weights))
    logits = hidden @ weight.T + (0.0 if bias is None else np.asarray(bias, np.float64))
    log_sum = np.log(np.exp(logits).sum(axis=1))
    rows = np.flatnonzero(w)
    target_logit = np.zeros(len(w))
    target_logit[rows] = logits[rows, np.asarray(targets)[rows]]
    z_loss = z_loss_weight * log_sum**2
    correct = np.zeros(len(w))
    correct[rows] = logits[rows].argmax(axis=1) == np.asarray(targets)[rows]
    loss = (w * (log_sum - target_logit + z_loss))[rows].sum()
    return loss, (w * z_loss)[rows].sum(), (w * correct).sum(), w.sum()


def gradients(function, arguments: tuple, **options) -> tuple:
    """Gradients of a mean loss to hidden, weight, bias (when present) and token weights."""
    wanted = (0, 1, 4) if arguments[2] is None else (0, 1, 2, 4)

    def mean_loss(*arguments):
        sums = function(*arguments, **options)
        return 3.0 * sums.loss_sum / sums.weight_sum

    return jax.jit(jax.grad(mean_loss, wanted))(*arguments)


@pytest.mark.parametrize("z_loss_weight", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_sums_equal_float64(bias: bool, z_loss_weight: float) -> None:
    arguments = inputs(bias=bias)
    expected = float64_sums(*arguments, z_loss_weight)
    for function in (definition, functools.partial(linear_cross_entropy, chunk_size=5)):
        sums = function(*arguments, z_loss_weight=z_loss_weight)
        np.testing.assert_allclose([float(s) for s in sums], expected, rtol=2e-6)


@pytest.mark.parametrize("z_loss_weight", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_equal_those_of_the_definition(bias: bool, z_loss_weight: float) -> None:
    arguments = inputs(bias=bias)
    actual = gradients(linear_cross_entropy, arguments, z_loss_weight=z_loss_weight, chunk_size=5)
    expected = gradients(definition, arguments, z_loss_weight=z_loss_weight)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_gradients_equal_finite_differences_of_the_float64_loss() -> None:
    arguments = inputs()
    sums = jax.jit(functools.partial(linear_cross_entropy, z_loss_weight=0.1, chunk_size=5))
    gradient = jax.grad(lambda h, w, b: sums(h, w, b, *arguments[3:]).loss_sum, (0, 1, 2))
    gradient = gradient(*arguments[:3])
    rng = np.random.default_rng(0)
    for position in range(3):
        direction = rng.normal(size=arguments[position].shape)

        def moved(amount: float, position=position, direction=direction) -> float:
            changed = [a if a is None else np.asarray(a, np.float64) for a in arguments]
            changed[position] = changed[position] + amount * direction
            changed[3] = arguments[3]
            return float64_sums(*changed, 0.1)[0]

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        assert np.sum(np.asarray(gradient[position]) * direction) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("chunk_size", [1, 7, 22, 512])
def test_the_chunk_size_changes_nothing(chunk_size: int) -> None:
    arguments = inputs()
    sums = linear_cross_entropy(*arguments, z_loss_weight=0.1, chunk_size=chunk_size)
    expected = linear_cross_entropy(*arguments, z_loss_weight=0.1, chunk_size=TOKENS)
    np.testing.assert_allclose(sums, expected, rtol=1e-6)
    actual = gradients(linear_cross_entropy, arguments, chunk_size=chunk_size)
    for a, b in zip(actual, gradients(definition, arguments), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_no_tokens_give_zero_sums_and_gradients() -> None:
    hidden, weight, bias, targets, token_weights = inputs(tokens=0)

    def loss(weight):
        return linear_cross_entropy(hidden, weight, bias, targets, token_weights).loss_sum

    value, gradient = jax.value_and_grad(loss)(weight)
    assert value == 0
    assert (gradient == 0).all()


def test_targets_are_ignored_where_the_weight_is_zero() -> None:
    hidden, weight, bias, targets, token_weights = inputs()
    ignored = jnp.where(token_weights == 0, -100, targets)
    arguments = (hidden, weight, bias, ignored, token_weights)
    plain = inputs()
    options = {"z_loss_weight": 0.1, "chunk_size": 5}
    sums = linear_cross_entropy(*arguments, **options)
    np.testing.assert_array_equal(sums, linear_cross_entropy(*plain, **options))
    actual = gradients(linear_cross_entropy, arguments, **options)
    for a, b in zip(actual[:3], gradients(linear_cross_entropy, plain, **options)[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert (np.asarray(actual[0])[np.asarray(token_weights) == 0] == 0).all()


@pytest.mark.parametrize("bad_target", [-1, -100, VOCAB])
def test_an_impossible_target_that_counts_poisons_the_loss(bad_target: int) -> None:
    hidden, weight, bias, targets, token_weights = inputs()
    targets = targets.at[1].set(bad_target)
    assert token_weights[1] > 0
    sums = linear_cross_entropy(hidden, weight, bias, targets, token_weights, chunk_size=5)
    assert np.isnan(sums.loss_sum)


def test_the_cotangent_scales_every_gradient_and_reports_carry_none() -> None:
    arguments = inputs()

    def loss(weight, factor, field):
        hidden, _, *rest = arguments
        sums = linear_cross_entropy(hidden, weight, *rest, z_loss_weight=0.1, chunk_size=5)
        return factor * getattr(sums, field)

    gradient = jax.grad(loss)
    one = gradient(arguments[1], 1.0, "loss_sum")
    np.testing.assert_allclose(gradient(arguments[1], -4.0, "loss_sum"), -4.0 * one, rtol=1e-6)
    for report in ("z_loss_sum", "correct_sum", "weight_sum"):
        assert (gradient(arguments[1], 1.0, report) == 0).all()


def test_tied_logits_are_no_hit() -> None:
    hidden, weight, _, targets, token_weights = inputs()
    sums = linear_cross_entropy(hidden, 0.0 * weight, None, targets, token_weights)
    assert sums.correct_sum == 0


def test_large_logits_stay_finite() -> None:
    hidden, weight, bias, targets, token_weights = inputs()
    arguments = (1e4 * hidden, weight, bias, targets, token_weights)
    sums = linear_cross_entropy(*arguments, chunk_size=5)
    assert np.isfinite(np.asarray(sums)).all()
    assert all(np.isfinite(g).all() for g in gradients(linear_cross_entropy, arguments))


def test_bfloat16_states_with_a_float32_tied_weight() -> None:
    arguments = inputs(dtype=jnp.bfloat16)
    dhidden, dweight, dbias, _ = gradients(linear_cross_entropy, arguments, chunk_size=5)
    assert (dhidden.dtype, dweight.dtype, dbias.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    expected = gradients(definition, arguments)
    np.testing.assert_allclose(dweight, expected[1], atol=1e-2)
    # Summed in float32: a bfloat16 sum would leave only values that bfloat16 can hold.
    assert (dweight != dweight.astype(jnp.bfloat16).astype(jnp.float32)).any()


@pytest.mark.parametrize("differentiated", [False, True])
def test_no_array_of_all_logits_is_compiled(differentiated: bool) -> None:
    tokens, hidden_size, vocab, chunk = 96, 10, 77, 16
    shapes = (
        jax.ShapeDtypeStruct((tokens, hidden_size), jnp.float32),
        jax.ShapeDtypeStruct((vocab, hidden_size), jnp.float32),
        jax.ShapeDtypeStruct((vocab,), jnp.float32),
        jax.ShapeDtypeStruct((tokens,), jnp.int32),
        jax.ShapeDtypeStruct((tokens,), jnp.float32),
    )

    def compiled_sizes(function) -> set[int]:
        def loss(*arguments):
            return function(*arguments).loss_sum

        program = jax.value_and_grad(loss, (0, 1, 2)) if differentiated else loss
        text = jax.jit(program).lower(*shapes).compile().as_text()
        dimensions = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)
        return {int(np.prod([int(d) for d in found.split(",")])) for found in dimensions}

    fused = compiled_sizes(functools.partial(linear_cross_entropy, chunk_size=chunk))
    assert chunk * vocab in fused  # the search does see logits: those of one chunk
    assert max(fused) < tokens * vocab
    assert tokens * vocab in compiled_sizes(definition)  # and would see all of them


def test_bad_arguments_are_named() -> None:
    hidden, weight, bias, targets, token_weights = inputs()
    checked = cross_entropy.linear_cross_entropy
    bare = getattr(checked, "__wrapped__", checked)  # without the annotation checks of tests
    with pytest.raises(ValueError, match="chunk_size = 0"):
        bare(hidden, weight, bias, targets, token_weights, chunk_size=0)
    with pytest.raises(ValueError, match="do not fit together"):
        bare(hidden[:, 1:], weight, bias, targets, token_weights)
    with pytest.raises(ValueError, match=r"must be \(23,\)"):
        bare(hidden, weight, bias, targets[1:], token_weights)
