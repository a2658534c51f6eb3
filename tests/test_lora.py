"""Adapters: which matrices get them, what they add, and that nothing else learns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.tiny import MODEL
from zaya_jax.config import ConfigError
from zaya_jax.lora import init_adapters, merge_adapters, params_checksum
from zaya_jax.lora_settings import A, B, LoraConfig, LoraTarget, target_of
from zaya_jax.model.transformer import Transformer
from zaya_jax.optimizer.groups import names_of

ALL = LoraConfig(rank=2, alpha=6.0, targets=("attention", "experts", "router"))


def tree() -> dict[str, Any]:
    """Three layers of one projection, of two experts, and of what has no adapter."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    return {
        "embedding": normal(7, 4),
        "layers": {
            "attention": {"query": {"weight": normal(3, 6, 4), "bias": normal(3, 6)}},
            "experts": {"gate_up": normal(3, 2, 8, 4), "down": normal(3, 2, 4, 4)},
            "router": {"down": {"weight": normal(3, 5, 4)}, "norm": {"weight": normal(3, 5)}},
        },
    }


def adapters(params: dict[str, Any]) -> dict[str, Any]:
    """Adapters whose B is not zero any more."""
    made = init_adapters(jax.random.key(1), params, ALL)
    return jax.tree.map(lambda leaf: jnp.where(leaf == 0, 0.1, leaf), made)


def test_every_target_names_its_matrices_and_no_others() -> None:
    shapes: Any = jax.eval_shape(
        lambda key: Transformer(MODEL).init(key, jnp.zeros((1, 2), jnp.int32)), jax.random.key(0)
    )
    found: dict[LoraTarget, set[str]] = {target: set() for target in LoraTarget}
    for path, _ in jax.tree_util.tree_leaves_with_path(shapes["params"]):
        names = names_of(path)
        target = target_of(names)
        if target is not None:
            found[target].add(".".join(names[2:]).removesuffix(".weight"))
    assert found == {
        LoraTarget.ATTENTION: {"query", "key", "value_current", "value_delayed", "output"},
        LoraTarget.EXPERTS: {"gate_up", "down"},
        LoraTarget.ROUTER: {"down", "fc1", "fc2", "out"},
    }


def test_new_adapters_change_nothing() -> None:
    params = tree()
    fresh = init_adapters(jax.random.key(1), params, ALL)
    merged = merge_adapters(params, fresh, ALL)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, merged, params)
    a = fresh["layers"]["experts"]["gate_up"][A]
    assert a.shape == (3, 2, 2, 4)
    assert 0.3 < float(jnp.abs(a).max()) <= 0.5  # uniform within 1 / sqrt(in)
    assert len(np.unique(np.asarray(a))) == a.size  # every layer and expert has its own


def test_merged_matrices_act_like_the_matrix_and_its_adapter_side_by_side() -> None:
    params = tree()
    own = adapters(params)
    merged = merge_adapters(params, own, ALL)
    paths = [
        ("attention", "query", "weight"),
        ("experts", "gate_up"),
        ("experts", "down"),
        ("router", "down", "weight"),
    ]
    for path in paths:
        weight, pair, new = params["layers"], own["layers"], merged["layers"]
        for name in path:
            weight, pair, new = weight[name], pair[name], new[name]
        for place in np.ndindex(*weight.shape[:-2]):
            x = np.random.default_rng(2).normal(size=(5, weight.shape[-1])).astype(np.float32)
            aside = (x @ pair[A][place].T) @ pair[B][place].T
            both = x @ weight[place].T + 3.0 * aside  # alpha / rank
            np.testing.assert_allclose(x @ new[place].T, both, atol=2e-5)


def test_gradients_reach_adapters_alone_in_every_layer_and_expert() -> None:
    params = tree()
    fresh = init_adapters(jax.random.key(1), params, ALL)

    def loss(own: dict[str, Any]) -> jax.Array:
        leaves = jax.tree.leaves(merge_adapters(params, own, ALL))
        return sum((jnp.sum(jnp.sin(leaf)) for leaf in leaves), jnp.float32(0))

    gradient = jax.grad(loss)(fresh)
    assert jax.tree.structure(gradient) == jax.tree.structure(fresh)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        per_matrix = np.abs(np.asarray(leaf)).max(axis=(-2, -1))
        if names_of(path)[-1] == B:
            assert (per_matrix > 0).all(), path
        else:
            assert (per_matrix == 0).all(), path  # through B, which is still zero


def test_the_checksum_sees_a_bit_and_an_exchange() -> None:
    params = tree()
    before = int(params_checksum(params))
    assert before == int(params_checksum(tree()))
    flipped = tree()
    bits = jax.lax.bitcast_convert_type(flipped["embedding"], jnp.uint32).at[3, 1].add(1)
    flipped["embedding"] = jax.lax.bitcast_convert_type(bits, jnp.float32)
    assert int(params_checksum(flipped)) != before
    exchanged = tree()
    experts = exchanged["layers"]["experts"]
    experts["down"], experts["gate_up"] = experts["gate_up"], experts["down"]
    assert int(params_checksum(exchanged)) != before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": -1}, "lora.rank=-1: must not be negative"),
        ({"alpha": 0.0}, "lora.alpha=0.0: must be positive"),
        ({"targets": ("head",)}, "'head' is none of: attention, experts, router"),
        ({"targets": ()}, "must name each target once"),
        ({"targets": ("router", "router")}, "must name each target once"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoraConfig(**fields)


def test_a_target_that_the_model_lacks_is_refused() -> None:
    params = tree()
    del params["layers"]["router"]
    with pytest.raises(ConfigError, match="this model has no router"):
        init_adapters(jax.random.key(0), params, ALL)
