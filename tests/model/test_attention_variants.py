"""The attention blocks of ablations: against their definitions, causal, apart by segment."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.config import ModelConfig
from zaya_jax.model.attention import attention_block
from zaya_jax.model.cca import CCAAttention
from zaya_jax.model.cca_parts import PartialCCAAttention
from zaya_jax.model.gqa import GroupedQueryAttention
from zaya_jax.model.mla import LatentAttention
from zaya_jax.model.rope import inverse_frequencies, rope_tables

BASE = ModelConfig(
    vocab_size=32,
    hidden_size=12,
    num_layers=1,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_experts=2,
    expert_intermediate_size=8,
    router_hidden_size=4,
    max_position_embeddings=64,
    activation_dtype="float32",
    attention_bias=True,  # biases are what leaks over the start of a segment
)
VARIANTS = {
    "gqa": BASE.replace(attention="gqa"),
    "mha": BASE.replace(attention="gqa", num_kv_heads=4),
    "mla": BASE.replace(attention="mla", num_kv_heads=4, kv_latent_size=6, query_latent_size=10),
    "one_convolution": BASE.replace(convolutions="depthwise", depthwise_conv_width=3),
    "bare": BASE.replace(convolutions="none", query_key_mean="none", value_path="current"),
}
ROUNDING = 2e-5


@functools.cache
def variant(name: str) -> tuple[Any, Any]:
    """The compiled block and parameters without a zero or a one among them."""
    config = VARIANTS[name]
    block: Any = attention_block(config)(config)

    def apply(params: Any, x: Any, positions: Any, segment_ids: Any) -> jax.Array:
        cos, sin = rope_tables(positions, config.rotary_dim, config.rope_theta)
        return block.apply(
            {"params": params}, x, cos=cos, sin=sin, segment_ids=segment_ids, window=None
        )

    x = jnp.zeros((1, 2, config.hidden_size))
    angles = jnp.zeros((1, 2, config.rotary_dim // 2))
    shapes = jax.eval_shape(
        functools.partial(block.init, cos=angles, sin=angles, segment_ids=None, window=None),
        jax.random.key(0),
        x,
    )
    rng = np.random.default_rng(3)
    params = jax.tree.map(
        lambda leaf: rng.normal(0.5, 0.5, leaf.shape).astype(np.float32), shapes["params"]
    )
    return jax.jit(apply), params


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gqa", GroupedQueryAttention),
        ("mla", LatentAttention),
        ("one_convolution", PartialCCAAttention),
        ("bare", PartialCCAAttention),
    ],
)
def test_a_config_gets_the_block_that_it_names(name: str, expected: type) -> None:
    assert attention_block(VARIANTS[name]) is expected


@pytest.mark.parametrize(
    "left_out",
    [{}, {"convolutions": "none"}, {"query_key_mean": "none"}, {"value_path": "current"}],
    ids=str,
)
def test_cca_with_any_part_left_out_is_the_partial_one(left_out: dict[str, str]) -> None:
    expected = PartialCCAAttention if left_out else CCAAttention
    assert attention_block(BASE.replace(**left_out)) is expected


def inputs(length: int) -> np.ndarray:
    shape = (1, length, BASE.hidden_size)
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", VARIANTS)
def test_packed_segments_equal_separate_ones_and_later_tokens_change_nothing(name: str) -> None:
    apply, params = variant(name)
    x, lengths = inputs(10), (3, 7)
    segment_ids = np.repeat([1, 2], lengths)[None].astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in lengths])[None].astype(np.int32)
    packed = np.asarray(apply(params, x, positions, segment_ids))
    # Alone: each segment in a row of the same length, followed by noise instead of the other.
    for start, length in ((0, 3), (3, 7)):
        alone = inputs(10)[:, ::-1].copy()
        alone[:, :length] = x[:, start : start + length]
        ids = np.ones_like(segment_ids)
        output = apply(params, alone, np.arange(10, dtype=np.int32)[None], ids)
        np.testing.assert_allclose(
            packed[:, start : start + length], output[:, :length], atol=ROUNDING
        )


def rotated(x: np.ndarray, position: int, config: ModelConfig) -> np.ndarray:
    """RoPE on the first rotary channels of one head at one position."""
    half = config.rotary_dim // 2
    angle = position * inverse_frequencies(config.rotary_dim, config.rope_theta).astype(np.float64)
    first, second = x[:half].copy(), x[half : 2 * half].copy()
    turned = x.copy()
    turned[:half] = first * np.cos(angle) - second * np.sin(angle)
    turned[half : 2 * half] = second * np.cos(angle) + first * np.sin(angle)
    return turned


def attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The last query over all keys."""
    scores = keys @ queries[-1] / np.sqrt(queries.shape[-1])
    weights = np.exp(scores - scores.max())
    return (weights / weights.sum()) @ values


def linear(params: Any, name: str, x: np.ndarray) -> np.ndarray:
    weight, bias = (np.asarray(params[name][key], np.float64) for key in ("weight", "bias"))
    return weight @ x + bias


def test_mla_is_its_definition_written_token_by_token() -> None:
    config = VARIANTS["mla"]
    apply, params = variant("mla")
    x, dim, rotary = inputs(10)[0].astype(np.float64), config.head_dim, config.rotary_dim

    def normed(name: str, latent: np.ndarray) -> np.ndarray:
        scale = np.asarray(params[f"{name}_latent_norm"]["weight"], np.float64)
        return latent / np.sqrt(np.mean(latent**2) + config.rms_norm_epsilon) * scale

    def head(i: int, t: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        c_q = normed("query", linear(params, "query_down", x[t]))
        c_kv = normed("kv", linear(params, "kv_down", x[t]))
        query = linear(params, "query_up", c_q)[i * dim : (i + 1) * dim]
        own = linear(params, "key_up", c_kv)[i * (dim - rotary) : (i + 1) * (dim - rotary)]
        key = np.concatenate([linear(params, "key_rotary", x[t]), own])
        value = linear(params, "value_up", c_kv)[i * dim : (i + 1) * dim]
        return rotated(query, t, config), rotated(key, t, config), value

    for t in (0, 1, 6):
        heads = []
        for i in range(config.num_query_heads):
            triples = [head(i, s) for s in range(t + 1)]
            heads.append(attend(*(np.stack(part) for part in zip(*triples, strict=True))))
        expected = linear(params, "output", np.concatenate(heads))
        ours = apply(params, x[None].astype(np.float32), np.arange(10)[None], None)[0, t]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)


def test_gqa_is_its_definition_written_token_by_token() -> None:
    config = VARIANTS["gqa"]
    apply, params = variant("gqa")
    x, dim = inputs(10)[0].astype(np.float64), config.head_dim
    t, group = 6, config.num_query_heads // config.num_kv_heads
    heads = []
    for i in range(config.num_query_heads):
        own, shared = (slice(j * dim, (j + 1) * dim) for j in (i, i // group))
        rows = range(t + 1)
        queries = [rotated(linear(params, "query", x[s])[own], s, config) for s in rows]
        keys = [rotated(linear(params, "key", x[s])[shared], s, config) for s in rows]
        values = [linear(params, "value", x[s])[shared] for s in rows]
        heads.append(attend(np.stack(queries), np.stack(keys), np.stack(values)))
    expected = linear(params, "output", np.concatenate(heads))
    ours = apply(params, x[None].astype(np.float32), np.arange(10)[None], None)[0, t]
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)


def test_cca_with_all_its_parts_is_cca() -> None:
    config = BASE.replace(depthwise_conv_width=3)
    x = jnp.asarray(inputs(9))
    positions = np.arange(9, dtype=np.int32)[None]
    cos, sin = rope_tables(positions, config.rotary_dim, config.rope_theta)
    arguments: dict[str, Any] = {
        "cos": cos,
        "sin": sin,
        "segment_ids": jnp.asarray([[1] * 4 + [2] * 5]),
        "window": None,
    }
    shapes = jax.eval_shape(
        functools.partial(CCAAttention(config).init, **arguments), jax.random.key(0), x
    )
    rng = np.random.default_rng(1)
    variables = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    whole = jax.jit(lambda v: CCAAttention(config).apply(v, x, **arguments))(variables)
    parts = jax.jit(lambda v: PartialCCAAttention(config).apply(v, x, **arguments))(variables)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-5 * np.abs(whole).max())


def test_values_of_this_token_only_ignore_the_token_before() -> None:
    apply, params = variant("bare")
    x = inputs(2)
    other = x.copy()
    other[:, 0] += 1.0
    # The second token attends to itself alone: only a delay could let the first one through.
    ids, positions = np.array([[1, 2]], np.int32), np.zeros((1, 2), np.int32)
    first, second = (apply(params, tokens, positions, ids)[:, 1] for tokens in (x, other))
    np.testing.assert_array_equal(first, second)
