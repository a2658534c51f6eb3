"""The grouped expert kernels equal the dense definition for any load, with every gradient."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas.backend import KernelError
from kernels_pallas.expert_mlp import expert_mlp
from tests.kernels_pallas.compare import assert_close, interpreted, random, value_and_gradients

EXPERTS, HIDDEN, WIDTH = 3, 20, 12  # nothing divides the interpreter's tiles of 16


def check(class_index, dtype=jnp.float32) -> None:
    tokens = len(class_index)
    x, *rest = random(
        0,
        (tokens, HIDDEN),
        (tokens,),
        (EXPERTS, 2 * WIDTH, HIDDEN),
        (EXPERTS, HIDDEN, WIDTH),
    )
    arguments = (x.astype(dtype), jnp.asarray(class_index, jnp.int32), *rest)
    pallas = functools.partial(expert_mlp, dispatch="grouped", implementation="pallas")
    dense = functools.partial(expert_mlp, dispatch="dense")
    actual = interpreted(lambda: value_and_gradients(pallas, arguments))
    expected = value_and_gradients(dense, arguments)
    assert_close(actual, expected, reduction=max(tokens, 1) * HIDDEN, dtype=dtype)


def test_an_empty_expert_a_full_one_and_skipped_tokens() -> None:
    check(np.random.default_rng(0).choice([0, 0, 0, 2, EXPERTS], 37))


@pytest.mark.parametrize("expert", [1, EXPERTS], ids=["one hot group", "all skipped"])
def test_all_tokens_of_one_class(expert: int) -> None:
    check([expert] * 18)


def test_tokens_that_skip_are_not_read() -> None:
    class_index = jnp.asarray([0, EXPERTS, 2, EXPERTS, 0, EXPERTS, 2], jnp.int32)
    x, *rest = random(0, (7, HIDDEN), (7,), (EXPERTS, 2 * WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH))
    poisoned = jnp.where((class_index == EXPERTS)[:, None], jnp.nan, x)
    pallas = functools.partial(expert_mlp, dispatch="grouped", implementation="pallas")
    actual = interpreted(lambda: value_and_gradients(pallas, (poisoned, class_index, *rest)))
    expected = value_and_gradients(
        functools.partial(expert_mlp, dispatch="dense"), (x, class_index, *rest)
    )
    assert_close(actual, expected, reduction=7 * HIDDEN)


@pytest.mark.slow
def test_bfloat16_tokens_with_float32_weights() -> None:
    check(np.arange(21) % (EXPERTS + 1), jnp.bfloat16)


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(st.lists(st.integers(0, EXPERTS), min_size=1, max_size=40))
def test_any_load(class_index: list[int]) -> None:
    check(class_index)


def test_refusals_name_the_reason() -> None:
    run = functools.partial(expert_mlp, dispatch="grouped", implementation="pallas")
    x, gate, gate_up, down = random(0, (2, 4), (2,), (1, 6, 4), (1, 4, 3))
    class_index = jnp.zeros(2, jnp.int32)
    with pytest.raises(KernelError, match="expert_mlp: implementation='pallas' needs a GPU"):
        run(x, class_index, gate, gate_up, down)
    with pytest.raises(KernelError, match="x has dtype float16, not float32 or bfloat16"):
        interpreted(lambda: run(x.astype(jnp.float16), class_index, gate, gate_up, down))
