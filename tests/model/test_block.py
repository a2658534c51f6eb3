"""What a layer reports about its stream."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.model.block import root_mean_square
from zaya_jax.model.outputs import Routing


@pytest.mark.parametrize("real", [[1, 1, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]])
def test_the_root_mean_square_is_over_real_tokens_only(real: list[int]) -> None:
    x = np.random.default_rng(0).normal(size=(1, 4, 6)).astype(np.float32)
    expected = np.sqrt(np.mean(np.square(x[0, np.flatnonzero(real)])))
    found = root_mean_square(jnp.asarray(x), jnp.asarray([real], jnp.float32))
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_without_real_tokens_it_is_zero() -> None:
    assert float(root_mean_square(jnp.ones((1, 3, 2)), jnp.zeros((1, 3)))) == 0.0


def test_the_load_is_the_share_of_each_class_and_zero_without_tokens() -> None:
    counts = jnp.asarray([[1.0, 0.0, 0.0], [3.0, 4.0, 1.0], [0.0, 0.0, 0.0]])
    nothing = jnp.zeros((3, 1, 1))
    routing = Routing(nothing.astype(jnp.int32), nothing[..., None], nothing[..., None], counts)
    expected = [[1.0, 0.0, 0.0], [0.375, 0.5, 0.125], [0.0, 0.0, 0.0]]
    assert routing.load.tolist() == expected
