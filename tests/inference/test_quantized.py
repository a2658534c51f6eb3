"""Experts in 8 and 4 bits: the nearest values, half a byte where promised, used as they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.config import ConfigError
from zaya_jax.inference.experts import ExpertMatrices, expert_feed_forward
from zaya_jax.inference.quantized import GROUP, dequantize, quantize, with_rounded_experts
from zaya_jax.inference.settings import EngineSettings

MATRIX = np.random.default_rng(0).normal(size=(6, 4 * GROUP)).astype(np.float32)


@pytest.mark.parametrize(("bits", "most"), [(8, 127), (4, 7)])
def test_values_are_the_nearest_of_their_group(bits: int, most: int) -> None:
    matrix = MATRIX.copy()
    matrix[2, :GROUP] = 0.0
    packed = quantize(jnp.asarray(matrix), bits)
    assert packed.values.nbytes == matrix.size * bits // 8
    step = np.abs(matrix.reshape(6, 4, GROUP)).max(axis=-1) / most
    error = np.abs(np.asarray(dequantize(packed, jnp.float32)) - matrix).reshape(6, 4, GROUP)
    assert np.all(error <= step[:, :, None] / 2 * (1 + 1e-5))
    assert np.all(error[2, 0] == 0)


@pytest.mark.parametrize("bits", [8, 4])
def test_experts_compute_with_the_rounded_weights(bits: int) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    gate_up = jax.random.normal(keys[0], (2, 2 * 64, 64))
    down = jax.random.normal(keys[1], (2, 64, 64))
    x = jax.random.normal(keys[2], (3, 64))
    variables = {"params": {"layers": {"experts": {"gate_up": gate_up[None], "down": down[None]}}}}
    rounded = with_rounded_experts(variables, bits)["params"]["layers"]["experts"]
    quantized = ExpertMatrices(
        tuple(quantize(own, bits) for own in gate_up), tuple(quantize(own, bits) for own in down)
    )
    plain = ExpertMatrices(tuple(rounded["gate_up"][0]), tuple(rounded["down"][0]))
    found, expected = (
        expert_feed_forward(
            x,
            jnp.asarray([1, 2, 0]),
            jnp.asarray([0.5, 0.0, 1.0]),
            experts,
            dispatch="grouped",
            implementation="auto",
        )
        for experts in (quantized, plain)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="48 columns"):
        quantize(jnp.zeros((2, 48)), 8)
    with pytest.raises(ConfigError, match="expert_bits=5"):
        EngineSettings(expert_bits=5)
