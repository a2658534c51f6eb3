"""The symmetric kernels of Newton-Schulz equal full products and orthogonalise."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas.backend import KernelError
from kernels_pallas.newton_schulz import newton_schulz
from tests.kernels_pallas.compare import assert_close, interpreted, random


def run(matrices, implementation, **options):
    return jax.jit(functools.partial(newton_schulz, implementation=implementation, **options))(
        matrices
    )


@pytest.mark.parametrize(
    "shape", [(2, 21, 40), pytest.param((1, 35, 18), marks=pytest.mark.slow)], ids=str
)
def test_steps_equal_full_products(shape: tuple[int, ...]) -> None:
    (matrices,) = random(0, shape)
    options = {"steps": 2, "dtype": jnp.float32}
    actual = interpreted(lambda: run(matrices, "pallas", **options))
    # Each of the steps' three products sums over at most the longer side.
    assert_close(actual, run(matrices, "xla", **options), reduction=6 * max(shape))


@pytest.mark.slow
@settings(deadline=None, max_examples=6)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40))
def test_any_shape(batch: int, rows: int, columns: int) -> None:
    (matrices,) = random(0, (batch, rows, columns))
    options = {"steps": 1, "dtype": jnp.float32}
    actual = interpreted(lambda: run(matrices, "pallas", **options))
    reduction = 3 * max(rows, columns)
    assert_close(actual, run(matrices, "xla", **options), reduction=reduction)


def test_singular_values_come_near_one() -> None:
    (matrices,) = random(1, (3, 12, 20))
    values = np.linalg.svd(np.asarray(run(matrices, "xla", dtype=jnp.float32)), compute_uv=False)
    assert 0.6 < values.min() <= values.max() < 1.3


def test_refusals_name_the_reason() -> None:
    (matrices,) = random(0, (1, 4, 4))
    with pytest.raises(KernelError, match="newton_schulz: implementation='pallas' needs a GPU"):
        newton_schulz(matrices, implementation="pallas")
    with pytest.raises(KernelError, match="dtype = float16, not float32 or bfloat16"):
        interpreted(lambda: newton_schulz(matrices, implementation="pallas", dtype=jnp.float16))
