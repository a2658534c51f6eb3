"""Routers, top-k, skip class and residuals of ablations do what their names say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.config import ConfigError, ModelConfig
from zaya_jax.model.experts import Experts
from zaya_jax.model.norm import ResidualScale
from zaya_jax.model.router import Router
from zaya_jax.model.transformer import Transformer
from zaya_jax.presets import nano
from zaya_jax.released import require_released
from zaya_jax.variants import ResidualKind

SMALL = nano().replace(
    hidden_size=8, num_experts=4, router_hidden_size=6, num_layers=2, expert_intermediate_size=8
)


def route(config: ModelConfig, biases: np.ndarray | None = None, state: float = 0.0) -> Any:
    """Parameters, input and decision of a router on 64 random tokens."""
    x = jax.random.normal(jax.random.key(1), (2, 32, config.hidden_size))
    arguments: dict[str, Any] = {
        "previous_state": jnp.full((2, 32, config.router_hidden_size), state),
        "state_scale": jnp.ones((config.router_hidden_size,)),
        "balancing_biases": jnp.zeros(5) if biases is None else jnp.asarray(biases, jnp.float32),
    }
    variables = Router(config).init(jax.random.key(0), x, **arguments)
    return variables["params"], x, Router(config).apply(variables, x, **arguments)


def test_a_linear_router_is_one_matrix() -> None:
    params, x, routed = route(SMALL.replace(router="linear"))
    assert list(params) == ["out"]
    np.testing.assert_allclose(routed.logits, x @ params["out"]["weight"].T, atol=1e-5)
    assert np.unique(routed.class_index).size >= 3


def test_only_the_router_with_depth_mixing_sees_the_state_before() -> None:
    for kind, sees in (("mlp_eda", True), ("mlp", False), ("linear", False)):
        config = SMALL.replace(router=kind)
        logits = [np.asarray(route(config, state=state)[2].logits) for state in (0.0, 2.0)]
        assert np.any(logits[0] != logits[1]) == sees, kind


def test_without_a_skip_class_nothing_can_skip() -> None:
    # Biases that would send every token to the skip class.
    params, _, routed = route(SMALL.replace(skip_class="none"), np.array([-9, -9, -9, -9, 9]))
    assert params["out"]["weight"].shape[0] == 4
    assert np.all(routed.class_index < 4)
    np.testing.assert_array_equal(routed.probabilities[..., 4], 0.0)
    np.testing.assert_allclose(routed.probabilities.sum(axis=-1), 1.0, rtol=1e-6)


def test_two_experts_per_token_are_the_two_highest_and_their_outputs_add_up() -> None:
    config = SMALL.replace(experts_per_token=2, expert_dispatch="dense")
    biases = np.array([0.0, 0.2, 0.0, -0.1, -1.0])
    _, x, routed = route(config, biases)
    (second,) = routed.further
    order = np.argsort(-(np.asarray(routed.probabilities) + biases), axis=-1)
    np.testing.assert_array_equal(routed.class_index, order[..., 0])
    np.testing.assert_array_equal(second.class_index, order[..., 1])
    gates = np.take_along_axis(np.asarray(routed.probabilities), order[..., :2], axis=-1)
    np.testing.assert_allclose(routed.gate, gates[..., 0], rtol=1e-6)
    np.testing.assert_allclose(second.gate, gates[..., 1], rtol=1e-6)
    experts = Experts(config)
    own = experts.init(jax.random.key(0), x, routed.class_index, routed.gate)
    both = sum(
        np.asarray(experts.apply(own, x, chosen.class_index, chosen.gate))
        for chosen in (routed, second)
    )
    gate_up, down = (np.asarray(own["params"][name], np.float64) for name in ("gate_up", "down"))
    g, u = np.split(np.einsum("eoh,bsh->bseo", gate_up, x), 2, axis=-1)
    each = np.einsum("ehf,bsef->bseh", down, g / (1 + np.exp(-g)) * u)
    chosen = np.take_along_axis(each, order[..., :2, None], axis=2)
    np.testing.assert_allclose(both, (gates[..., None] * chosen).sum(axis=2), atol=1e-5)


def test_every_choice_of_a_token_counts_in_the_load() -> None:
    model = Transformer(SMALL.replace(experts_per_token=2, expert_dispatch="dense"))
    tokens = np.arange(12, dtype=np.int32)[None]

    def start_and_run(key: jax.Array) -> Any:
        return model.apply(model.init(key, tokens), tokens).routing

    routing = jax.jit(start_and_run)(jax.random.key(0))
    np.testing.assert_array_equal(routing.class_counts.sum(axis=-1), 24.0)
    np.testing.assert_allclose(routing.load.sum(axis=-1), 1.0, rtol=1e-6)
    with pytest.raises(ValueError, match="one class a token"):
        jax.eval_shape(
            lambda key: model.apply(
                model.init(key, tokens), tokens, routes=np.zeros((2, 1, 12), np.int32)
            ),
            jax.random.key(0),
        )


def test_a_plain_residual_has_no_parameters_and_adds() -> None:
    hidden, residual = (jax.random.normal(jax.random.key(i), (2, 3, 8)) for i in (0, 1))
    module = ResidualScale(ResidualKind.PLAIN)
    assert module.init(jax.random.key(0), hidden, residual) == {}
    np.testing.assert_array_equal(module.apply({}, hidden, residual), hidden + residual)


@pytest.mark.parametrize(
    "changes",
    [{"router": "linear"}, {"residual": "plain"}, {"experts_per_token": 2}],
    ids=str,
)
def test_what_only_the_released_architecture_can_do_refuses_variants(changes: dict) -> None:
    require_released(SMALL, "never refused")
    ((field, value),) = changes.items()
    with pytest.raises(ConfigError, match=f"{field}={value}: no released model .* cannot do it"):
        require_released(SMALL.replace(**changes), "it cannot do it")
