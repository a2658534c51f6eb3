"""Loss by position adds up to the loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.context_probe import loss_by_position
from tests.training.tiny import MODEL, random_batch
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.loss import loss_sums


@pytest.fixture(scope="module")
def variables() -> dict[str, Any]:
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    shapes = jax.eval_shape(Transformer(MODEL).init, jax.random.key(0), tokens)
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda s: jnp.asarray(0.2 * random.standard_normal(s.shape), s.dtype), shapes
    )


@pytest.mark.slow
def test_buckets_add_up_to_the_loss_of_the_batch(variables: dict[str, Any]):
    batch = random_batch()
    buckets = loss_by_position(MODEL, variables, [batch])
    sums = jax.jit(lambda b: loss_sums(Transformer(MODEL), **variables, batch=b))(batch)
    assert sum(b.tokens for b in buckets) == int(sums.weight)
    total = sum(b.loss * b.tokens for b in buckets)
    assert total == pytest.approx(float(sums.loss), rel=1e-4)
