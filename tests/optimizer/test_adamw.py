"""AdamW: decay groups, clipping, and the arithmetic against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from zaya_jax import presets
from zaya_jax.model.transformer import Transformer
from zaya_jax.optimizer.adamw import adamw
from zaya_jax.optimizer.groups import decay_mask, optimizer_groups
from zaya_jax.optimizer.settings import OptimizerConfig, Schedule

FLAT = OptimizerConfig(schedule=Schedule.CONSTANT, peak_learning_rate=0.1, warmup_steps=0)


def _model_params() -> dict:
    config = presets.nano().replace(tie_embeddings=False, head_bias=True, attention_bias=True)
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens)["params"]


def test_only_matrices_of_the_real_model_decay():
    groups = optimizer_groups(_model_params(), muon=False)
    decayed = {name.split("/", 1)[-1] for name in groups["AdamW, decayed"]}
    expected = {f"attention/{n}/weight" for n in ("query", "key", "output")}
    expected |= {f"attention/value_{n}/weight" for n in ("current", "delayed")}
    expected |= {f"router/{n}/weight" for n in ("down", "fc1", "fc2", "out")}
    expected |= {"experts/gate_up", "experts/down", "attention/grouped_conv"}
    expected |= {"embedding", "head_weight"}
    assert decayed == expected


def test_norms_scales_biases_and_temperatures_are_listed_as_not_decayed():
    names = " ".join(optimizer_groups(_model_params(), muon=False)["AdamW, not decayed"])
    for part in ("norm/weight", "residual_scale", "bias", "key_temperature", "router_state_scale"):
        assert part in names


def test_an_unknown_parameter_must_be_put_into_a_group():
    with pytest.raises(ValueError, match="layers/mystery"):
        decay_mask({"layers": {"mystery": jnp.zeros((2, 2))}})


def test_equals_adamw_written_out_with_clipping_and_decay_on_matrices_only():
    params = {"fc": {"weight": jnp.full((2, 2), 2.0), "bias": jnp.full((2,), 2.0)}}
    grads = {"fc": {"weight": jnp.full((2, 2), 3.0), "bias": jnp.full((2,), 4.0)}}
    optimizer = adamw(FLAT, total_steps=10)
    state = optimizer.init(params)
    norm = np.sqrt(4 * 9 + 2 * 16)
    expected = {"weight": 2.0, "bias": 2.0}
    moments = {"weight": [0.0, 0.0], "bias": [0.0, 0.0]}
    for step in range(1, 4):
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for name, gradient, decay in (("weight", 3.0 / norm, 0.1), ("bias", 4.0 / norm, 0.0)):
            m, v = moments[name]
            m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
            moments[name] = [m, v]
            direction = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
            expected[name] -= 0.1 * (direction + decay * expected[name])
    np.testing.assert_allclose(params["fc"]["weight"], expected["weight"], rtol=1e-5)
    np.testing.assert_allclose(params["fc"]["bias"], expected["bias"], rtol=1e-5)


def test_clipping_leaves_small_gradients_alone():
    """Adam is blind to a constant factor, so look at the first moment it keeps."""
    optimizer = adamw(FLAT, total_steps=10)
    params = {"fc": {"bias": jnp.zeros((4,))}}
    for size, expected in ((0.1, 0.1), (100.0, 0.5)):
        grads = {"fc": {"bias": jnp.full((4,), size)}}
        _, state = optimizer.update(grads, optimizer.init(params), params)
        moment = next(leaf for leaf in jax.tree.leaves(state) if leaf.shape == (4,))
        np.testing.assert_allclose(moment, 0.1 * expected, rtol=1e-6)


def test_zero_gradients_are_not_clipped_to_nan():
    params = {"fc": {"bias": jnp.zeros((4,))}}
    updates, _ = adamw(FLAT, total_steps=10).update(
        params, adamw(FLAT, total_steps=10).init(params), params
    )
    np.testing.assert_array_equal(updates["fc"]["bias"], 0.0)


def test_the_compiled_update_is_in_place_and_makes_no_copy_of_a_parameter():
    optimizer = adamw(FLAT, total_steps=10)
    params = {"fc": {"weight": jnp.zeros((512, 512))}}
    size = params["fc"]["weight"].nbytes

    def update(params: dict, state: optax.OptState, grads: dict) -> tuple[dict, optax.OptState]:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(update, donate_argnums=(0, 1)).lower(params, optimizer.init(params), params)
    memory = compiled.compile().memory_analysis()
    assert memory.temp_size_in_bytes < size / 10
    assert memory.alias_size_in_bytes >= 3 * size
