"""Cross entropy and log-probabilities by the kernels equal their definitions, with gradients."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas import cross_entropy
from kernels_pallas.backend import KernelError
from kernels_pallas.head_statistics import token_log_probabilities
from tests.kernels_pallas.compare import assert_close, interpreted, random, value_and_gradients

HIDDEN, VOCAB = 20, 75  # a last vocabulary tile of 11 and a last chunk of 11


def inputs(tokens: int, *, bias: bool, dtype=jnp.float32):
    hidden, weight, bias_row = random(0, (tokens, HIDDEN), (VOCAB, HIDDEN), (VOCAB,))
    targets = jax.random.randint(jax.random.key(9), (tokens,), 0, VOCAB).at[0].set(VOCAB - 1)
    return hidden.astype(dtype), weight, bias_row if bias else None, targets


@pytest.mark.parametrize("bias", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_cross_entropy_with_z_loss_and_ignored_tokens(bias: bool) -> None:
    hidden, weight, bias_row, targets = inputs(19, bias=bias)
    token_weights = jax.random.uniform(jax.random.key(3), (19,)).at[2].set(0.0)
    arguments = (hidden, weight, bias_row, targets.at[2].set(-100), token_weights)
    options = {"z_loss_weight": 0.1}
    fused = functools.partial(
        cross_entropy.linear_cross_entropy, implementation="pallas", **options
    )
    definition = functools.partial(cross_entropy.definition, **options)
    actual = interpreted(lambda: value_and_gradients(fused, arguments))
    expected = value_and_gradients(definition, arguments)
    assert_close(actual, expected, reduction=19 * VOCAB)


def test_log_probabilities_of_tokens() -> None:
    arguments = inputs(5, bias=True)
    kernels, plain = (
        functools.partial(token_log_probabilities, implementation=name)
        for name in ("pallas", "xla")
    )
    actual = interpreted(lambda: value_and_gradients(kernels, arguments))
    assert_close(actual, value_and_gradients(plain, arguments), reduction=VOCAB)


@pytest.mark.slow
@settings(deadline=None, max_examples=6)
@given(st.data())
def test_any_shape(data: st.DataObject) -> None:
    tokens, hidden, vocab = (data.draw(st.integers(1, most)) for most in (20, 24, 70))
    arrays = random(0, (tokens, hidden), (vocab, hidden), (vocab,))
    targets = jnp.asarray(
        data.draw(st.lists(st.integers(0, vocab - 1), min_size=tokens, max_size=tokens)), jnp.int32
    )
    kernels, plain = (
        functools.partial(token_log_probabilities, implementation=name)
        for name in ("pallas", "xla")
    )
    actual = interpreted(lambda: value_and_gradients(kernels, (*arrays, targets)))
    expected = value_and_gradients(plain, (*arrays, targets))
    assert_close(actual, expected, reduction=max(tokens, hidden, vocab))


def test_a_target_outside_the_vocabulary_is_nan() -> None:
    hidden, weight, _, targets = inputs(3, bias=False)
    run = jax.jit(functools.partial(token_log_probabilities, implementation="pallas"))
    bad = targets.at[1].set(VOCAB)
    found = interpreted(lambda: run(hidden, weight, None, bad))
    np.testing.assert_array_equal(np.isnan(found), [False, True, False])


def test_refusals_name_the_reason() -> None:
    arguments = inputs(3, bias=False)
    with pytest.raises(KernelError, match="token_log_probabilities: .*needs a GPU"):  # noqa: RUF043
        token_log_probabilities(*arguments, implementation="pallas")
    half = (arguments[0].astype(jnp.float16), *arguments[1:])
    with pytest.raises(KernelError, match="hidden has dtype float16"):
        interpreted(lambda: token_log_probabilities(*half, implementation="pallas"))
