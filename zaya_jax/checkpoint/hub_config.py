"""A released config.json, of any generation, as a `ModelConfig`.

    v1    ZAYA1-base and ZAYA1-reasoning-base: lists with one entry a half-layer (`zaya_layers`)
    v2    the first ZAYA1-8B: the same names with plain numbers
    new   what transformers' `ZayaConfig` reads

v1 and v2 count attention and expert blocks as layers of their own and come with tensors of the
`zyphra` layout, new with those of the `transformers` layout.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from zaya_jax.checkpoint.config_keys import LARGEST, ConfigKeys
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
# Field of a ModelConfig -> key, where the names differ; for messages.
_KEYS = {
    "num_query_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "depthwise_conv_width": "cca_time0",
    "grouped_conv_width": "cca_time1",
    "rotary_fraction": "partial_rotary_factor",
    "rms_norm_epsilon": "rms_norm_eps",
    "initializer_stddev": "initializer_range",
    "sliding_rope_theta": "rope_theta of sliding layers",
}
_V2_KEYS = {"rms_norm_epsilon": "norm_epsilon", "sliding_rope_theta": "swa_rotary_base"}
_V1_KEYS = {"num_query_heads": "cca_num_q_heads", "num_kv_heads": "num_query_groups_list"}
_KEYS_OF = {"new": _KEYS, "v2": _KEYS | _V2_KEYS, "v1": _KEYS | _V2_KEYS | _V1_KEYS}
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
    fields |= _common_fields(keys)
    try:
        model = ModelConfig(**fields)
    except ConfigError as error:
        names = _KEYS_OF[generation]
        told = re.sub(r"\w+(?==)", lambda field: names.get(field[0], field[0]), str(error))
        raise ConfigError(f"{file}: {told}") from None
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
    if given is not None:
        texts = isinstance(given, list) and all(isinstance(kind, str) for kind in given)
        if not texts or any(kind not in names for kind in given):
            raise keys.error("layer_types", f"must be a list of {FULL!r} and {SLIDING!r}")
        if len(given) != layers:
            raise keys.error("layer_types", f"has {len(given)} entries, num_hidden_layers={layers}")
    types = [LayerType.FULL] if given is None else [names[kind] for kind in given]
    window = keys.integer("sliding_window", None, least=0)
    if LayerType.SLIDING in types and not window:
        raise keys.error("sliding_window", f"layers of type {SLIDING!r} need a window of 1 or more")
    return {
        "num_layers": layers,
        "num_query_heads": keys.integer("num_attention_heads"),
        "num_kv_heads": keys.integer("num_key_value_heads"),
        "head_dim": keys.integer("head_dim"),
        "num_experts": keys.integer("num_experts"),
        "expert_intermediate_size": keys.integer("moe_intermediate_size"),
        "router_hidden_size": keys.integer("router_hidden_size"),
        "rms_norm_epsilon": keys.number("rms_norm_eps"),
        **_attention_fields(keys, types, window, read_rope(keys)),
    }


def _read_v1(keys: ConfigKeys) -> dict[str, Any]:
    blocks = keys.raw("zaya_layers")
    experts = blocks[1] if isinstance(blocks, list) and len(blocks) > 1 else None
    if (
        type(experts) is not int
        or not 1 <= experts <= LARGEST
        or blocks != ["a", experts] * (len(blocks) // 2)
    ):
        raise keys.error("zaya_layers", "must alternate between 'a' and one number of experts")
    count = len(blocks)
    keys.ignore("num_hidden_layers")  # files that leave it out get a wrong default elsewhere
    heads = keys.integer("num_attention_heads")  # nominal: it only sets the size of a head
    keys.ignore("num_key_value_heads", "num_experts")
    return {
        "num_query_heads": keys.one_value("cca_num_q_heads", count, 0),
        "num_kv_heads": keys.one_value("num_query_groups_list", count, 0),
        "head_dim": keys.integer("kv_channels", keys.integer("hidden_size") // max(heads, 1)),
        "num_experts": experts,
        "expert_intermediate_size": _halved(
            keys, "ffn_hidden_size_list", keys.one_value("ffn_hidden_size_list", count, 1)
        ),
        "router_hidden_size": keys.one_value("zaya_mlp_expansion", count, 1),
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
    head_dim = "kv_channels" if "kv_channels" in keys and "head_dim" not in keys else "head_dim"
    keys.ignore("kv_channels")
    return {
        "num_query_heads": keys.integer("cca_num_q_heads", heads),
        "num_kv_heads": kv_heads,
        "head_dim": keys.integer(head_dim),
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
    windows = _windows(keys, half_layers)
    # The released number counts earlier tokens, ours the query's own too.
    window = max(windows) + 1 if any(windows) else None
    if window is None and keys.raw("sliding_window") is not None:
        raise keys.error("sliding_window", "is given without swa_layers, which name the layers")
    keys.ignore("sliding_window")
    types = [LayerType.SLIDING if value else LayerType.FULL for value in windows]
    return {
        "num_layers": half_layers // 2,
        "rms_norm_epsilon": keys.number("norm_epsilon"),
        **_attention_fields(keys, types, window, read_rope(keys)),
    }


def _windows(keys: ConfigKeys, half_layers: int) -> list[int]:
    """Earlier tokens that each layer's attention sees, 0 for all; one entry where all are 0."""
    given = keys.raw("swa_layers")
    if given is None or given is False or given == []:
        return [0]
    if not isinstance(given, list) or not all(type(value) is int for value in given):
        raise keys.error("swa_layers", "must be a list of whole numbers, one a half-layer")
    if len(given) != half_layers:
        raise keys.error("swa_layers", f"has {len(given)} entries for {half_layers} half-layers")
    if any(given[1::2]):
        raise keys.error("swa_layers", "gives windows to expert blocks, which have none")
    windows = given[::2]
    if len(set(windows) - {0}) > 1 or not 0 <= min(windows) <= max(windows) < LARGEST:
        raise keys.error("swa_layers", "all windows must be the same positive number")
    return windows


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
