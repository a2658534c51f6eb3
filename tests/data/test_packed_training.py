"""Packed windows train like the same examples one to a window: loss and gradient are equal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.training.tiny import MODEL
from zaya_jax.data.examples import join
from zaya_jax.data.packing_plan import plan_packing
from zaya_jax.data.planned import make_batch
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.loss import loss_sums

WINDOW = 24
SIZES = (24, 13, 7, 4, 2, 20, 3)  # positions; they share four windows


def test_packed_and_unpacked_examples_give_the_same_loss_and_gradient():
    random = np.random.default_rng(0)
    examples = join(
        (
            random.integers(3, 260, size + 1).astype(np.int32),
            random.integers(0, 2, size + 1).astype(np.float32),
        )
        for size in SIZES
    )
    plan = plan_packing(examples.lengths, WINDOW)
    assert len(plan) == 4
    # Empty windows behind the packed ones: one compiled program serves both.
    windows = [plan.window(n) if n < len(plan) else np.arange(0) for n in range(len(SIZES))]
    packed = make_batch([(examples, members) for members in windows], WINDOW, 0)
    alone = make_batch([(examples, np.asarray([n])) for n in range(len(SIZES))], WINDOW, 0)

    model = Transformer(MODEL)
    variables: Any = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))

    @jax.jit
    def loss_and_gradient(params: Any, batch: dict) -> Any:
        def objective(params: Any) -> Any:
            sums = loss_sums(model, params, variables["balancing"], batch)
            return sums.objective, sums.class_counts

        return jax.value_and_grad(objective, has_aux=True)(params)

    (loss, counts), gradient = loss_and_gradient(variables["params"], packed)
    (expected, expected_counts), expected_gradient = loss_and_gradient(variables["params"], alone)
    np.testing.assert_allclose(loss, expected, rtol=2e-6)
    np.testing.assert_array_equal(counts, expected_counts)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4),
        gradient,
        expected_gradient,
    )
