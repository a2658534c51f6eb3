"""The fused residual addition and norm equals its definition, values and gradients."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas.backend import KernelError
from kernels_pallas.norm import scaled_residual_norm
from tests.kernels_pallas.compare import assert_close, interpreted, random, value_and_gradients

VECTORS = ("hidden_bias", "hidden_scale", "residual_bias", "residual_scale", "norm_weight")


def run(implementation, hidden, residual, *vectors, norm_dtype=jnp.float32):
    return scaled_residual_norm(
        hidden,
        residual,
        epsilon=1e-5,
        norm_dtype=norm_dtype,
        implementation=implementation,
        **dict(zip(VECTORS, vectors, strict=True)),
    )


def inputs(rows: int, channels: int, *, dtype=jnp.float32):
    hidden, residual, *vectors = random(0, *[(rows, channels)] * 2, *[(channels,)] * 5)
    return hidden.astype(dtype), residual, *vectors


def both(arguments, **options):
    xla, pallas = (
        functools.partial(run, implementation, **options) for implementation in ("xla", "pallas")
    )
    return (
        interpreted(lambda: value_and_gradients(pallas, arguments)),
        value_and_gradients(xla, arguments),
    )


@pytest.mark.parametrize("shape", [(1, 16), (5, 20), (9, 8)])
def test_values_and_gradients_equal_the_definition(shape: tuple[int, int]) -> None:
    assert_close(*both(inputs(*shape)), reduction=max(shape))


def test_bfloat16_branch_with_float32_stream() -> None:
    arguments = inputs(6, 24, dtype=jnp.bfloat16)
    actual, expected = both(arguments, norm_dtype=jnp.bfloat16)
    assert [a.dtype for a in actual[0]] == [jnp.float32, jnp.bfloat16]
    assert actual[1][0].dtype == jnp.bfloat16
    # Only what leaves in bfloat16 is rounded to it; sums are float32.
    assert_close(actual[0][0], expected[0][0], reduction=1)
    assert_close(actual, expected, reduction=6, dtype=jnp.bfloat16)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 13), channels=st.integers(1, 40))
def test_any_shape(rows: int, channels: int) -> None:
    assert_close(*both(inputs(rows, channels)), reduction=max(rows, channels))


def test_leading_axes_and_no_rows() -> None:
    arguments = [a.reshape(2, 3, 8) if a.ndim == 2 else a for a in inputs(6, 8)]
    actual = interpreted(lambda: run("pallas", *arguments))
    assert_close(actual, run("xla", *arguments), reduction=8)
    empty = [a[:0] if a.ndim == 2 else a for a in inputs(2, 8)]
    assert interpreted(lambda: run("pallas", *empty))[0].shape == (0, 8)


def test_refusals_name_the_reason() -> None:
    arguments = inputs(2, 8)
    with pytest.raises(KernelError, match="needs a GPU, the default backend is 'cpu'; use"):
        run("pallas", *arguments)
    with pytest.raises(KernelError, match=r"channels = 9000 is more than 8192; use .*='xla'"):
        interpreted(lambda: run("pallas", *inputs(1, 9000)))
    with pytest.raises(KernelError, match="hidden has dtype float16"):
        interpreted(lambda: run("pallas", *inputs(2, 8, dtype=jnp.float16)))
