"""An update over several devices is the update of one."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rl.test_trainer import TRAINER, packed
from tests.rl.tiny_policy import MODEL, variables
from zaya_jax.parallel.mesh import build_mesh
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.parallel.sharded_loss import score_tokens_on_mesh
from zaya_jax.rl.log_probs import token_log_probs
from zaya_jax.rl.trainer import PolicyTrainer
from zaya_jax.training.placement import Placement

# Adam divides by |gradient|: where that is rounding, so would the update be.
ONE_DEVICE = dataclasses.replace(
    TRAINER, optimizer=dataclasses.replace(TRAINER.optimizer, epsilon=1e-2)
)


def on_mesh(**sizes: int) -> PolicyTrainer:
    mesh = build_mesh(MeshConfig(**sizes), jax.devices()[: int(np.prod(list(sizes.values())))])
    return dataclasses.replace(ONE_DEVICE, placement=Placement(MODEL, mesh))


def test_log_probabilities_and_their_gradients_are_the_same_on_a_mesh() -> None:
    random = np.random.default_rng(0)
    hidden = random.normal(size=(2, 4, 6)).astype(np.float32)
    weight, bias = (random.normal(size=s).astype(np.float32) for s in ((10, 6), (10,)))
    targets = jnp.asarray(random.integers(0, 10, (2, 4)), jnp.int32)

    def total(hidden: jax.Array, weight: jax.Array, bias: jax.Array) -> tuple:
        found = score_tokens_on_mesh(token_log_probs, hidden, weight, bias, targets)
        return jnp.sum(found.log_probs * jnp.arange(8.0).reshape(2, 4)), found

    gradient = jax.grad(total, argnums=(0, 1, 2), has_aux=True)
    expected = jax.jit(gradient)(hidden, weight, bias)
    mesh = build_mesh(MeshConfig(fsdp=2, context=2, tensor=2), jax.devices()[:8])
    with jax.set_mesh(mesh):
        found = jax.jit(gradient)(hidden, weight, bias)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"data": 2}, {"fsdp": 2}, {"expert": 2}, {"context": 2}], ids=str
)
def test_one_update_is_the_same_on_a_mesh(sizes: dict[str, int]) -> None:
    rows = packed()
    alone, expected = ONE_DEVICE.update(ONE_DEVICE.init(variables()), rows)
    trainer = on_mesh(**sizes)
    state, metrics = trainer.update(trainer.init(variables()), rows)
    for name in ("loss", "grad_norm", "entropy", "kl_k3", "ratio_max", "flipped_routes"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6), name
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_parameters_and_moments_stay_where_the_placement_puts_them() -> None:
    trainer = on_mesh(fsdp=2)
    state = trainer.init(variables())
    after, _ = trainer.update(state, packed())
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
    largest = max(jax.tree.leaves(after.params), key=lambda leaf: leaf.size)
    assert largest.addressable_shards[0].data.size == largest.size // 2
