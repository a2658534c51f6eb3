"""Counts agree with the released model, the initialised tree and XLA's own cost analysis."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest

from zaya_jax.config import LayerType, ModelConfig
from zaya_jax.model.transformer import Transformer
from zaya_jax.model_size import (
    active_parameter_count,
    flops_per_token,
    parameter_count,
    training_flops_per_token,
)
from zaya_jax.presets import PRESETS, nano, preset, zaya1_8b


def initialised_count(config: ModelConfig) -> int:
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def test_zaya1_8b_counts_as_published() -> None:
    config = zaya1_8b()
    assert parameter_count(config) == 8_840_489_464
    assert round(parameter_count(config, embedding=False) / 1e9, 3) == 8.303
    assert round(active_parameter_count(config) / 1e6, 1) == 753.6
    assert round(active_parameter_count(config, embedding=True) / 1e9, 3) == 1.291


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_initialises_as_many_numbers_as_counted(name: str) -> None:
    assert initialised_count(preset(name)) == parameter_count(preset(name))


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"tie_embeddings": False, "head_bias": True},
        {"num_layers": 1},
        {"depthwise_conv_width": 4, "grouped_conv_width": 3},
        {"attention": "gqa", "attention_bias": True},
        {"attention": "mla", "kv_latent_size": 24, "num_kv_heads": 4},
        {
            "attention": "mla",
            "kv_latent_size": 24,
            "query_latent_size": 40,
            "num_kv_heads": 4,
            "attention_bias": True,
        },
        {"convolutions": "depthwise"},
        {"convolutions": "none", "query_key_mean": "none", "value_path": "current"},
        {"router": "linear", "skip_class": "none"},
        {"router": "mlp"},
        {"residual": "plain", "experts_per_token": 2},
    ],
    ids=str,
)
def test_variants_initialise_as_many_numbers_as_counted(changes: dict) -> None:
    config = nano().replace(**changes)
    assert initialised_count(config) == parameter_count(config)


def test_forward_flops_agree_with_xla_within_five_percent() -> None:
    seq_len = 2_048
    config = ModelConfig(
        vocab_size=2_048,
        hidden_size=256,
        num_layers=2,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=64,
        num_experts=1,  # the dense dispatch then does one expert's work per token
        expert_intermediate_size=512,
        router_hidden_size=64,
        max_position_embeddings=seq_len,
        expert_dispatch="dense",
        layer_loop="unroll",  # XLA counts the body of a loop once
        activation_dtype="float32",
    )
    model = Transformer(config)
    tokens = jax.ShapeDtypeStruct((1, seq_len), jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)
    compiled = jax.jit(lambda v, t: model.apply(v, t).logits).lower(variables, tokens).compile()
    measured = compiled.cost_analysis()["flops"] / seq_len
    assert flops_per_token(config, seq_len) == pytest.approx(measured, rel=0.05)


def test_training_counts_forward_three_times() -> None:
    config = nano()
    assert training_flops_per_token(config, 128) == 3 * flops_per_token(config, 128)


def test_a_window_bounds_the_keys_counted() -> None:
    full = nano()
    sliding = full.replace(layer_pattern=(LayerType.SLIDING,), sliding_window=16)
    brute_force = sum(min(position + 1, 16) for position in range(512)) / 512
    saved = flops_per_token(full, 512) - flops_per_token(sliding, 512)
    expected = 4 * full.num_layers * full.query_size * ((512 + 1) / 2 - brute_force)
    assert saved == pytest.approx(expected)
