"""Routers, top-k, skip class and residuals of ablations do what their names say."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.config import ConfigError, ModelConfig
from zaya_jax.model.experts import Experts
from zaya_jax.model.norm import ResidualScale
from zaya_jax.model.router import Router, choose_class
from zaya_jax.model.transformer import Transformer
from zaya_jax.presets import nano
from zaya_jax.released import require_released
from zaya_jax.variants import ResidualKind

SMALL = nano().replace(
    hidden_size=8, num_experts=4, router_hidden_size=6, num_layers=2, expert_intermediate_size=8
)


def route(
    config: ModelConfig,
    biases: np.ndarray | None = None,
    state: float = 0.0,
    recorded: np.ndarray | None = None,
) -> Any:
    """Parameters, input and decision of a router on 64 random tokens."""
    x = jax.random.normal(jax.random.key(1), (2, 32, config.hidden_size))
    arguments: dict[str, Any] = {
        "previous_state": jnp.full((2, 32, config.router_hidden_size), state),
        "state_scale": jnp.ones((config.router_hidden_size,)),
        "balancing_biases": jnp.zeros(5) if biases is None else jnp.asarray(biases, jnp.float32),
        "recorded_class": None if recorded is None else jnp.asarray(recorded),
    }
    variables = Router(config).init(jax.random.key(0), x, **arguments)
    return variables["params"], x, Router(config).apply(variables, x, **arguments)


def test_a_linear_router_is_one_matrix() -> None:
    params, x, routed = route(SMALL.replace(router="linear"))
    assert list(params) == ["out"]
    assert list(params["out"]) == ["weight"]
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
    np.testing.assert_array_equal(routed.logits[..., 4], -np.inf)
    np.testing.assert_array_equal(routed.probabilities[..., 4], 0.0)
    np.testing.assert_allclose(routed.probabilities.sum(axis=-1), 1.0, rtol=1e-6)


def test_recorded_choices_replace_live_ones_and_weigh_as_much_as_they_would_live() -> None:
    live = route(SMALL)[2]
    recorded = np.tile(np.array([0, 3, 4, -1], np.int32), (2, 8))
    replayed = route(SMALL, recorded=recorded)[2]
    classes = np.where(recorded >= 0, recorded, live.class_index)
    np.testing.assert_array_equal(replayed.class_index, classes)
    probabilities = np.asarray(live.probabilities)
    own = np.take_along_axis(probabilities, classes[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(replayed.gate, np.where(classes == 4, 0.0, own), rtol=1e-6)


def test_equally_likely_classes_go_to_the_lowest_and_then_to_the_next() -> None:
    even = jnp.full((1, 1, 4), 0.25)
    first = choose_class(even, jnp.zeros(4))
    second = choose_class(even, jnp.zeros(4), besides=[first])
    assert (first.item(), second.item()) == (0, 1)


def test_what_scores_classes_starts_by_the_channels_it_reads() -> None:
    wide = SMALL.replace(hidden_size=128, router_hidden_size=16, num_experts=63)
    for kind, inputs in (("linear", 128), ("mlp", 16)):
        router = Router(wide.replace(router=kind))
        start = functools.partial(
            router.init,
            previous_state=jnp.zeros((1, 1, 16)),
            state_scale=jnp.ones(16),
            balancing_biases=jnp.zeros(64),
        )
        weight = jax.jit(start)(jax.random.key(0), jnp.zeros((1, 1, 128)))["params"]["out"][
            "weight"
        ]
        assert weight.shape == (64, inputs)
        assert float(jnp.std(weight)) == pytest.approx(inputs**-0.5, rel=0.1), kind


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
        variables = model.init(key, tokens)
        return variables["params"], model.apply(variables, tokens).routing

    params, routing = jax.jit(start_and_run)(jax.random.key(0))
    first, second = params["layers"]["experts"]["down"]
    assert not np.any(first == second)  # every layer starts elsewhere
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
