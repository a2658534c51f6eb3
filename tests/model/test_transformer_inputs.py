"""What the model refuses, what each layer is handed, and how the loop over layers is built."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

from zaya_jax.config import LayerType, ModelConfig
from zaya_jax.model.transformer import Transformer
from zaya_jax.presets import nano

SMALL = nano().replace(
    vocab_size=12,
    hidden_size=8,
    num_layers=2,
    num_experts=4,
    expert_intermediate_size=8,
    router_hidden_size=6,
    max_position_embeddings=6,
    expert_dispatch="dense",
)


def shapes_of(config: ModelConfig) -> Any:
    tokens = np.zeros((1, 2), np.int32)
    return jax.eval_shape(lambda key: Transformer(config).init(key, tokens), jax.random.key(0))


def variables_of(config: ModelConfig) -> Any:
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes_of(config)
    )


@pytest.fixture(scope="module")
def small() -> Any:
    return variables_of(SMALL)


def test_tokens_and_routes_at_every_bound_are_accepted(small: Any) -> None:
    tokens = np.array([[0, 11, 0, 1, 2, 3]], np.int32)
    routes = np.tile(np.array([0, 4, -1, 0, 0, 0], np.int32), (2, 1, 1))
    traced = jax.eval_shape(
        lambda own: Transformer(SMALL).apply(own, tokens, routes=routes).logits, small
    )
    assert traced.shape == (1, 6, 12)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[-1, 11]], r"token id -1 is outside the vocabulary 0\.\.11"),
        ([[0, 12]], r"token id 12 is outside the vocabulary 0\.\.11"),
        ([[12]], "token id 12"),
        ([[0] * 7], "sequence of 7 tokens.*max_position_embeddings=6"),
    ],
)
def test_other_tokens_are_refused_by_name(small: Any, tokens: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transformer(SMALL).apply(small, np.array(tokens, np.int32))


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ([[[0, -2]], [[0, 4]]], r"route -2: router classes are 0\.\.4 and -1"),
        ([[[-1, 5]], [[0, 0]]], "route 5: router classes"),
        ([[[0, 0]]], r"routes \(1, 1, 2\): must be \[layers, batch, seq\] = \(2, 1, 2\)"),
    ],
)
def test_other_routes_are_refused_by_name(small: Any, routes: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transformer(SMALL).apply(
            small, np.zeros((1, 2), np.int32), routes=np.array(routes, np.int32)
        )


def test_a_single_foreign_route_is_refused() -> None:
    config = SMALL.replace(num_layers=1)
    with pytest.raises(ValueError, match="route 5"):
        Transformer(config).apply(
            variables_of(config), np.zeros((1, 1), np.int32), routes=np.full((1, 1, 1), 5, np.int32)
        )


def layer_inputs(config: ModelConfig, variables: Any) -> Any:
    return Transformer(config).apply(variables, None, method=Transformer._layer_inputs)


def test_the_first_layer_mixes_no_router_state_and_every_later_one_by_its_own_scale(
    small: Any,
) -> None:
    scales = layer_inputs(SMALL, small).router_state_scale
    np.testing.assert_array_equal(scales[0], 0.0)
    np.testing.assert_array_equal(scales[1:], small["params"]["router_state_scale"])


def test_routers_without_depth_mixing_have_no_scales() -> None:
    for config in (SMALL.replace(router="mlp"), SMALL.replace(num_layers=1)):
        variables = variables_of(config)
        assert "router_state_scale" not in variables["params"]
        scales = layer_inputs(config, variables).router_state_scale
        np.testing.assert_array_equal(scales, np.zeros((config.num_layers, 6)))


@pytest.mark.parametrize(
    ("pattern", "window", "table"),
    [
        (("full",), None, [0, 0, 0]),
        (("sliding",), [5, 5, 5], [0, 0, 0]),
        (("sliding", "full", "full"), [5, 2**31 - 1, 2**31 - 1], [1, 0, 0]),
    ],
)
def test_windows_and_angles_follow_the_pattern_of_layers(
    pattern: tuple[str, ...], window: list[int] | None, table: list[int]
) -> None:
    kinds = tuple(LayerType(kind) for kind in pattern)
    width = 5 if window else None
    config = SMALL.replace(num_layers=3, layer_pattern=kinds, sliding_window=width)
    given = layer_inputs(config, variables_of(config))
    assert given.rope_index.tolist() == table
    assert (None if given.window is None else given.window.tolist()) == window


@pytest.mark.parametrize(
    ("layer_loop", "remat", "unroll", "repeated"),
    [
        ("scan", "none", 1, None),
        ("scan", "full", 1, r"policy=None\s+prevent_cse=False"),
        ("scan", "dots", 1, r"policy=[^\n]*(?i:dot)[^\n]*\s+prevent_cse=False"),
        ("scan", "offload", 1, r"policy=[^\n]*offload[^\n]*\s+prevent_cse=False"),
        ("unroll", "dots", 2, r"policy=[^\n]*(?i:dot)[^\n]*\s+prevent_cse=True"),
        ("unroll", "none", 2, None),
    ],
)
def test_the_loop_over_layers_is_built_as_the_config_says(
    small: Any, layer_loop: str, remat: str, unroll: int, repeated: str | None
) -> None:
    model = Transformer(SMALL.replace(layer_loop=layer_loop, remat=remat))
    tokens = np.zeros((1, 2), np.int32)

    def final(own: Any) -> jax.Array:
        return model.apply(own, tokens, method=Transformer.hidden_states).final

    program = str(jax.make_jaxpr(final)(small))
    assert max(int(count) for count in re.findall(r"unroll=(\d+)", program)) == unroll
    # Within a layer something is always computed twice; that is never without a barrier.
    anywhere = r"policy=(?!None)|prevent_cse=False"
    assert (re.search(repeated or anywhere, program) is None) == (repeated is None)
