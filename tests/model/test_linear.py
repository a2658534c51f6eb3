"""In which dtype a linear layer multiplies and answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from zaya_jax.model import initialization
from zaya_jax.model.linear import Linear


@pytest.mark.parametrize(
    ("output_dtype", "expected"), [(None, jnp.bfloat16), (jnp.dtype(jnp.float32), jnp.float32)]
)
def test_the_answer_has_the_operands_dtype_unless_another_is_asked_for(
    output_dtype: jnp.dtype | None, expected: jnp.dtype
) -> None:
    layer = Linear(3, True, initialization.ones, jnp.dtype(jnp.bfloat16), output_dtype)
    variables = {"params": {"weight": jnp.ones((3, 4)), "bias": jnp.full((3,), 0.001)}}
    output = layer.apply(variables, jnp.ones((2, 5, 4)))
    assert output.dtype == expected
    # The sum is rounded once, at the end, if at all.
    wanted = jnp.asarray(4.001, jnp.float32).astype(expected)
    assert jnp.all(output == wanted)


def test_without_a_bias_there_is_no_such_parameter() -> None:
    layer = Linear(3, False, initialization.ones, jnp.dtype(jnp.float32))
    assert list(layer.init(jax.random.key(0), jnp.ones((2, 4)))["params"]) == ["weight"]
