"""The geometries on which the model must equal the reference implementation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from zaya_jax.config import LayerType, ModelConfig

_BASE = ModelConfig(
    vocab_size=96,
    hidden_size=64,
    num_layers=3,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=16,
    num_experts=4,
    expert_intermediate_size=48,
    router_hidden_size=16,
    max_position_embeddings=128,
    rope_theta=5e6,
    activation_dtype="float32",
    expert_dispatch="dense",  # compiles quickest; one case runs the grouped form
)

BATCH, SEQ = 2, 40


@dataclasses.dataclass(frozen=True)
class ParityCase:
    """A geometry, and how its random routers are scaled.

    End-to-end logits cannot tell erf GELU from its tanh form or one router epsilon from another;
    router logits of strong routers and of nearly vanishing router states can.
    """

    name: str
    model: ModelConfig
    seed: int = 0
    router_gain: float = 2.0  # of the router's MLP
    router_down_gain: float = 2.0  # of the down-projection that makes the router's state

    def reference_config(self) -> dict[str, Any]:
        """Keyword arguments of transformers' `ZayaConfig` for this geometry."""
        model = self.model
        kinds = {LayerType.FULL: "hybrid", LayerType.SLIDING: "hybrid_sliding"}
        thetas = {"hybrid": model.rope_theta, "hybrid_sliding": model.sliding_rope_theta}
        return {
            "vocab_size": model.vocab_size,
            "hidden_size": model.hidden_size,
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": model.num_query_heads,
            "num_key_value_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "moe_intermediate_size": model.expert_intermediate_size,
            "num_experts": model.num_experts,
            "router_hidden_size": model.router_hidden_size,
            "cca_time0": model.depthwise_conv_width,
            "cca_time1": model.grouped_conv_width,
            "max_position_embeddings": model.max_position_embeddings,
            "rms_norm_eps": model.rms_norm_epsilon,
            "attention_bias": model.attention_bias,
            "lm_head_bias": model.head_bias,
            "tie_word_embeddings": model.tie_embeddings,
            "layer_types": [kinds[kind] for kind in model.layer_types],
            "sliding_window": model.sliding_window,
            "rope_parameters": {
                kind: {
                    "rope_type": "default",
                    "rope_theta": theta,
                    "partial_rotary_factor": model.rotary_fraction,
                }
                for kind, theta in thetas.items()
            },
            "pad_token_id": None,
            "eos_token_id": None,
            "bos_token_id": None,
        }

    def tokens(self) -> np.ndarray:
        """Random token ids, int32 [BATCH, SEQ]."""
        rng = np.random.default_rng(self.seed)
        return rng.integers(0, self.model.vocab_size, (BATCH, SEQ), dtype=np.int32)


def _case(
    name: str,
    *,
    seed: int = 0,
    router_gain: float = 2.0,
    router_down_gain: float = 2.0,
    **changes: Any,
) -> ParityCase:
    return ParityCase(name, _BASE.replace(**changes), seed, router_gain, router_down_gain)


CASES = (
    _case("base", seed=2),
    _case("grouped_dispatch", seed=2, expert_dispatch="grouped"),
    _case("heads_4_1", seed=4, num_kv_heads=1),
    _case("heads_4_4", seed=13, num_kv_heads=4),
    _case("heads_6_3", seed=1, num_query_heads=6, num_kv_heads=3),
    _case("conv_1_1", seed=2, depthwise_conv_width=1, grouped_conv_width=1),
    _case("conv_1_4", seed=2, depthwise_conv_width=1, grouped_conv_width=4),
    _case("conv_3_2", seed=2, depthwise_conv_width=3),
    _case("conv_4_3", seed=2, depthwise_conv_width=4, grouped_conv_width=3),
    _case("head_dim_64", seed=1, head_dim=64),
    _case("attention_bias", seed=5, attention_bias=True),
    _case("untied_head_bias", seed=2, tie_embeddings=False, head_bias=True),
    _case(
        "sliding",
        seed=2,
        num_layers=4,
        layer_pattern=(LayerType.SLIDING, LayerType.FULL),
        sliding_window=5,
        sliding_rope_theta=1e4,
    ),
    _case("full_rotary", seed=2, rotary_fraction=1.0, rope_theta=1e4),
    _case("experts_32", seed=4, num_experts=32),
    _case("one_layer", seed=2, num_layers=1),
    _case("strong_router", seed=5, router_gain=5.0),
    _case("tiny_router_state", seed=5, router_down_gain=0.003, router_gain=4.0),
)

CASE_BY_NAME = {case.name: case for case in CASES}
