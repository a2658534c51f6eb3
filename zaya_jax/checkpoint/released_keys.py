"""A `ModelConfig` as a released config.json, in the newest generation of each layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zaya_jax.checkpoint.hub_config import CARRIED_KEYS
from zaya_jax.checkpoint.layouts import TRANSFORMERS, Layout
from zaya_jax.checkpoint.rope_keys import FULL, SLIDING
from zaya_jax.config import ConfigError, LayerType, ModelConfig
from zaya_jax.released import require_released


def hub_config_keys(
    model: ModelConfig, layout: Layout, carried: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
    """The config.json that goes with tensors of that layout.

    Args:
      model: the architecture.
      layout: of the tensors.
      carried: token ids and other keys that are no part of the architecture.
      dtype: of the matrices.

    Raises:
      ConfigError: for a variant of the architecture that no release has.
    """
    require_released(model, "it cannot be exported")
    common = {
        "architectures": ["ZayaForCausalLM"],
        "model_type": "zaya",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_query_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "num_experts": model.num_experts,
        "max_position_embeddings": model.max_position_embeddings,
        "cca_time0": model.depthwise_conv_width,
        "cca_time1": model.grouped_conv_width,
        "attention_bias": model.attention_bias,
        "lm_head_bias": model.head_bias,
        "tie_word_embeddings": model.tie_embeddings,
        "initializer_range": model.initializer_stddev,
        "attention_dropout": 0.0,
        "use_cache": True,
        **{key: carried.get(key) for key in CARRIED_KEYS},
    }
    if layout is TRANSFORMERS:
        return {**common, **_new_keys(model), "dtype": dtype}
    return {**common, **_v2_keys(model), "torch_dtype": dtype}


def _new_keys(model: ModelConfig) -> dict[str, Any]:
    names = {LayerType.FULL: FULL, LayerType.SLIDING: SLIDING}
    thetas = {FULL: model.rope_theta, SLIDING: model.sliding_rope_theta}
    return {
        "num_hidden_layers": model.num_layers,
        "hidden_act": "silu",
        "rms_norm_eps": model.rms_norm_epsilon,
        "moe_intermediate_size": model.expert_intermediate_size,
        "num_experts_per_tok": model.experts_per_token,
        "router_hidden_size": model.router_hidden_size,
        "output_router_logits": False,
        "layer_types": [names[kind] for kind in model.layer_types],
        "sliding_window": model.sliding_window,
        "rope_parameters": {
            kind: {
                "rope_type": "default",
                "rope_theta": theta,
                "partial_rotary_factor": model.rotary_fraction,
            }
            for kind, theta in thetas.items()
        },
    }


def _v2_keys(model: ModelConfig) -> dict[str, Any]:
    sliding = [kind is LayerType.SLIDING for kind in model.layer_types]
    keys: dict[str, Any] = {
        "num_hidden_layers": 2 * model.num_layers,
        "num_query_groups": model.num_kv_heads,
        "ffn_hidden_size": 2 * model.expert_intermediate_size,
        "zaya_mlp_expansion": model.router_hidden_size,
        "norm_epsilon": model.rms_norm_epsilon,
        "moe_router_topk": model.experts_per_token,
        "rope_theta": model.rope_theta,
        "rope_scaling": None,
        "partial_rotary_factor": model.rotary_fraction,
        "cca": True,
        "activation_func": "swiglu",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "scale_residual_merge": True,
        "residual_in_fp32": True,
        "zaya_use_mod": True,
        "zaya_use_eda": True,
        "zaya_high_prec": True,
        "clamp_temp": False,
        "mamba_cache_dtype": "float32",
    }
    if any(sliding):
        previous = (model.sliding_window or 0) - 1
        if previous < 1:
            raise ConfigError(
                f"sliding_window={model.sliding_window}: the zyphra layout counts earlier tokens "
                "and uses 0 for no window, so a window must be at least 2"
            )
        keys["swa_layers"] = [n for s in sliding for n in (previous if s else 0, 0)]
        keys["swa_rotary_base"] = model.sliding_rope_theta
    return keys
