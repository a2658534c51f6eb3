"""A released config.json, of any generation, as a `ModelConfig`; and back.

    v1    ZAYA1-base and ZAYA1-reasoning-base: lists with one entry a half-layer (`zaya_layers`)
    v2    the first ZAYA1-8B: the same names with plain numbers
    new   what transformers' `ZayaConfig` reads

v1 and v2 count attention and expert blocks as layers of their own and come with tensors of the
`zyphra` layout, new with those of the `transformers` layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zaya_jax.checkpoint.config_keys import ConfigKeys
from zaya_jax.checkpoint.layouts import TRANSFORMERS, ZYPHRA, Layout
from zaya_jax.checkpoint.rope_keys import FULL, SLIDING, Rope, read_rope
from zaya_jax.config import ConfigError, LayerType, ModelConfig

CONFIG_FILE = "config.json"
CARRIED_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id")  # no part of a ModelConfig

# Keys that change neither the numbers of a forward pass nor the tensors.
_SAYS_NOTHING = (
    *("architectures", "model_type", "auto_map", "transformers_version", "_name_or_path"),
    *("use_cache", "output_router_logits", "return_dict", "output_hidden_states"),
    *("is_encoder_decoder", "id2label", "label2id", "problem_type", "chunk_size_feed_forward"),
    *("output_attentions", "mamba_cache_dtype", "fused_add_norm", "apply_rope_fusion"),
    *("bias_activation_fusion", "activation_func_fp8_input_store", "residual_in_fp32"),
    *("zaya_high_prec", "attn_implementation", "_attn_implementation", *CARRIED_KEYS),
)
# Fields of a ModelConfig that config.json has no key for: releases have the default.
_RELEASED_VARIANTS = (
    *("attention", "query_key_mean", "value_path", "router", "skip_class", "residual"),
    "experts_per_token",
)
_ONE_EXPERT = "the router chooses one expert per token"
_NO_DROPOUT = "this model has no dropout"
_SWIGLU = "experts are SwiGLU"


@dataclasses.dataclass(frozen=True)
class HubConfig:
    """What a config.json says."""

    model: ModelConfig
    layout: Layout  # of the tensors that belong to it
    generation: str
    carried: dict[str, Any]  # keys that travel along unread
    unused: list[str]  # keys of unknown meaning


def read_hub_config(file: Path) -> HubConfig:
    """Reads a config.json of any generation.

    Raises:
      ConfigError: names file, key and value of whatever is missing, malformed or not supported.
    """
    keys = ConfigKeys.read(file)
    keys.require("model_type", "zaya", "this is a model of another family")
    keys.require("clamp_temp", False, "key temperatures are used as they are")
    keys.require("attention_dropout", 0, _NO_DROPOUT)
    keys.require("num_experts_per_tok", 1, _ONE_EXPERT)
    keys.ignore(*_SAYS_NOTHING)
    if "zaya_layers" in keys:
        generation, fields = "v1", _read_v1(keys)
    elif "zaya_mlp_expansion" in keys or "norm_epsilon" in keys:
        generation, fields = "v2", _read_v2(keys)
    else:
        generation, fields = "new", _read_new(keys)
    model = ModelConfig(**_common_fields(keys), **fields)
    carried = {key: keys.raw(key) for key in CARRIED_KEYS}
    layout = TRANSFORMERS if generation == "new" else ZYPHRA
    return HubConfig(model, layout, generation, carried, keys.unused)


def _common_fields(keys: ConfigKeys) -> dict[str, Any]:
    dtype = str(keys.raw("dtype") or keys.raw("torch_dtype") or "bfloat16").removeprefix("torch.")
    keys.ignore("torch_dtype")
    return {
        "vocab_size": keys.integer("vocab_size"),
        "hidden_size": keys.integer("hidden_size"),
        "max_position_embeddings": keys.integer("max_position_embeddings"),
        "depthwise_conv_width": keys.integer("cca_time0", 2),
        "grouped_conv_width": keys.integer("cca_time1", 2),
        "attention_bias": keys.flag("attention_bias", False),
        "head_bias": keys.flag("lm_head_bias", False),
        "tie_embeddings": keys.flag("tie_word_embeddings", True),
        "initializer_stddev": keys.number("initializer_range", 0.02),
        "activation_dtype": "float32" if dtype == "float32" else "bfloat16",
    }


def _read_new(keys: ConfigKeys) -> dict[str, Any]:
    keys.require("hidden_act", "silu", _SWIGLU)
    layers = keys.integer("num_hidden_layers")
    names = {FULL: LayerType.FULL, SLIDING: LayerType.SLIDING}
    given = keys.raw("layer_types")
    given = [FULL] * layers if given is None else given
    if not isinstance(given, list) or any(kind not in names for kind in given):
        raise keys.error("layer_types", f"must be a list of {FULL!r} and {SLIDING!r}")
    if len(given) != layers:
        raise keys.error("layer_types", f"has {len(given)} entries, num_hidden_layers={layers}")
    window = keys.integer("sliding_window", None)
    return {
        "num_layers": layers,
        "num_query_heads": keys.integer("num_attention_heads"),
        "num_kv_heads": keys.integer("num_key_value_heads"),
        "head_dim": keys.integer("head_dim"),
        "num_experts": keys.integer("num_experts"),
        "expert_intermediate_size": keys.integer("moe_intermediate_size"),
        "router_hidden_size": keys.integer("router_hidden_size"),
        "rms_norm_epsilon": keys.number("rms_norm_eps"),
        **_attention_fields(keys, [names[kind] for kind in given], window, read_rope(keys)),
    }


def _read_v1(keys: ConfigKeys) -> dict[str, Any]:
    blocks = keys.raw("zaya_layers")
    experts = blocks[1] if isinstance(blocks, list) and len(blocks) > 1 else None
    if type(experts) is not int or blocks != ["a", experts] * (len(blocks) // 2):
        raise keys.error("zaya_layers", "must alternate between 'a' and one number of experts")
    count = len(blocks)
    keys.ignore("num_hidden_layers")  # files that leave it out get a wrong default elsewhere
    heads = keys.integer("num_attention_heads")  # nominal: it only sets the size of a head
    keys.ignore("num_key_value_heads", "num_experts")
    return {
        "num_query_heads": keys.one_value("cca_num_q_heads", count),
        "num_kv_heads": keys.one_value("num_query_groups_list", count),
        "head_dim": keys.integer("kv_channels", keys.integer("hidden_size") // max(heads, 1)),
        "num_experts": experts,
        "expert_intermediate_size": _halved(
            keys, "ffn_hidden_size_list", keys.one_value("ffn_hidden_size_list", count)
        ),
        "router_hidden_size": keys.one_value("zaya_mlp_expansion", count),
        **_legacy_fields(keys, count),
    }


def _read_v2(keys: ConfigKeys) -> dict[str, Any]:
    groups, kv_heads = keys.integer("num_query_groups", None), keys.integer("num_key_value_heads")
    if groups is not None and groups != kv_heads:
        raise keys.error("num_query_groups", f"must equal num_key_value_heads={kv_heads}")
    heads = keys.integer("num_attention_heads")
    count = keys.integer("num_hidden_layers")
    if count % 2 != 0 or count < 2:
        raise keys.error(
            "num_hidden_layers", "must be even: attention and expert blocks count separately"
        )
    return {
        "num_query_heads": keys.integer("cca_num_q_heads", heads),
        "num_kv_heads": kv_heads,
        "head_dim": keys.integer("head_dim", keys.integer("kv_channels", None)),
        "num_experts": keys.integer("num_experts"),
        "expert_intermediate_size": _halved(
            keys, "ffn_hidden_size", keys.integer("ffn_hidden_size")
        ),
        "router_hidden_size": keys.integer("zaya_mlp_expansion"),
        **_legacy_fields(keys, count),
    }


def _legacy_fields(keys: ConfigKeys, half_layers: int) -> dict[str, Any]:
    """What v1 and v2 have in common."""
    keys.require("cca", True, "only the CCA attention is known")
    keys.require("activation_func", "swiglu", _SWIGLU)
    keys.require("gated_linear_unit", True, _SWIGLU)
    keys.require("add_bias_linear", False, "experts have no biases")
    keys.require("normalization", "RMSNorm", "every norm is an RMSNorm")
    keys.require("moe_router_topk", 1, _ONE_EXPERT)
    keys.require("scale_residual_merge", True, "residual scales are part of the model")
    keys.require("zaya_use_mod", True, "the router's skip class is part of the model")
    keys.require("zaya_use_eda", True, "the router's state over depth is part of the model")
    previous = keys.raw("swa_layers") or [0] * half_layers
    if not isinstance(previous, list) or not all(type(value) is int for value in previous):
        raise keys.error("swa_layers", "must be a list of whole numbers, one a half-layer")
    if len(previous) != half_layers:
        raise keys.error("swa_layers", f"has {len(previous)} entries for {half_layers} half-layers")
    windows = previous[::2]
    if len(set(windows) - {0}) > 1 or min(windows) < 0:
        raise keys.error("swa_layers", "all windows must be the same positive number")
    # The released number counts earlier tokens, ours the query's own too.
    window = max(windows) + 1 if max(windows) > 0 else None
    if window is None and keys.raw("sliding_window") is not None:
        raise keys.error("sliding_window", "is given without swa_layers, which name the layers")
    keys.ignore("sliding_window")
    types = [LayerType.SLIDING if value else LayerType.FULL for value in windows]
    return {
        "num_layers": half_layers // 2,
        "rms_norm_epsilon": keys.number("norm_epsilon"),
        **_attention_fields(keys, types, window, read_rope(keys)),
    }


def _attention_fields(
    keys: ConfigKeys, types: list[LayerType], window: int | None, rope: Rope
) -> dict[str, Any]:
    """Pattern, window and RoPE bases; a base that some layer needs must be in the file."""
    if LayerType.FULL in types and rope.theta is None:
        raise keys.error("rope_theta", "the file gives no RoPE base for full layers; add it")
    if LayerType.SLIDING in types and rope.sliding_theta is None:
        raise keys.error(
            "rope_parameters", "the file gives no RoPE base for sliding layers; add "
            '"hybrid_sliding": {"rope_theta": …}, or swa_rotary_base to an older file'
        )  # fmt: skip
    fields: dict[str, Any] = {
        "layer_pattern": _shortest_period(types),
        "sliding_window": window if LayerType.SLIDING in types else None,
        "rotary_fraction": rope.fraction,
    }
    if rope.theta is not None:
        fields["rope_theta"] = rope.theta
    if rope.sliding_theta is not None:
        fields["sliding_rope_theta"] = rope.sliding_theta
    return fields


def _shortest_period(types: list[LayerType]) -> tuple[LayerType, ...]:
    count = len(types)
    periods = (n for n in range(1, count + 1) if count % n == 0)
    return tuple(next(types[:n] for n in periods if types[:n] * (count // n) == types))


def _halved(keys: ConfigKeys, name: str, value: int) -> int:
    """The width of an expert: the released number counts gate and up together."""
    if value % 2 != 0:
        raise keys.error(name, "must be even: it counts the gate and up projections together")
    return value // 2


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
    for field in dataclasses.fields(ModelConfig):
        if field.name in _RELEASED_VARIANTS and getattr(model, field.name) != field.default:
            raise ConfigError(
                f"{field.name}={getattr(model, field.name)!s}: no released model has this variant, "
                f"only {field.default!s}; it cannot be exported"
            )
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
