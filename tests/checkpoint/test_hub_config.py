"""config.json of every generation gives the same model; whatever else it says is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.hub_folders import SLIDING, TINY, new_keys, v1_keys, v2_keys
from zaya_jax.checkpoint.hub_config import HubConfig, read_hub_config
from zaya_jax.checkpoint.layouts import LAYOUTS
from zaya_jax.checkpoint.released_keys import hub_config_keys
from zaya_jax.config import ConfigError, LayerType, ModelConfig
from zaya_jax.presets import PRESETS, zaya1_8b, zaya1_base

ROPE = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}


def read(folder: Path, keys: Any) -> HubConfig:
    file = folder / "config.json"
    file.write_text(json.dumps(keys))
    return read_hub_config(file)


SAME_MODEL = {
    "new": new_keys(),
    "new, nested with a stray rope_type": new_keys(
        rope_parameters={
            "rope_type": "default",
            "hybrid": ROPE,
            "hybrid_sliding": ROPE | {"rope_theta": 1e4},
        }
    ),
    "new, flat rope": new_keys(rope_parameters=ROPE),
    "new, only a top-level rope_theta": new_keys(rope_parameters=..., rope_theta=1000000),
    "new, top-level rope_theta that agrees": new_keys(rope_theta=1e6),
    "new, linear scaling by one": new_keys(
        rope_parameters=ROPE | {"rope_type": "linear", "factor": 1.0}
    ),
    "new, no layer_types": new_keys(layer_types=...),
    "new, no rope for sliding layers": new_keys(
        rope_parameters={"hybrid": ROPE, "hybrid_sliding": None}
    ),
    "v2, a head size under its old name": v2_keys(head_dim=..., kv_channels=8),
    "v2, windows that are none": v2_keys(swa_layers=[0] * 6),
    "v2, the same base in rope_scaling": v2_keys(rope_scaling=ROPE),
    "v1, heads repeated for experts": v1_keys(cca_num_q_heads=[4, 4] * 3),
    "new, a window nobody uses": new_keys(sliding_window=4096),
    "v2": v2_keys(),
    "v2, also flat rope": v2_keys(rope_parameters=ROPE),
    "v2, rope only in rope_parameters": v2_keys(rope_theta=..., rope_parameters=ROPE),
    "v2, real heads beside nominal ones": v2_keys(num_attention_heads=8, cca_num_q_heads=4),
    "v2, no rope_scaling": v2_keys(rope_scaling=None),
    "v1": v1_keys(),
    "v1, the wrong default number of layers": v1_keys(num_hidden_layers=120),
    "v1, no kv_channels": v1_keys(kv_channels=...),
}


@pytest.mark.parametrize("name", SAME_MODEL)
def test_every_generation_and_form_gives_the_same_model(name: str, tmp_path: Path):
    hub = read(tmp_path, SAME_MODEL[name])
    assert hub.model == TINY
    assert hub.generation == name.split(",")[0]
    assert hub.layout.name == ("transformers" if hub.generation == "new" else "zyphra")
    assert hub.unused == []


@pytest.mark.parametrize("keys", [new_keys(SLIDING), v2_keys(SLIDING)], ids=["new", "v2"])
def test_windows_count_the_query_itself_here(keys: dict[str, Any], tmp_path: Path):
    assert read(tmp_path, keys).model == SLIDING


def test_the_base_model_keeps_its_rope_base(tmp_path: Path):
    hub = read(tmp_path, v1_keys(zaya1_base()))
    assert hub.model.rope_theta == 1e6
    assert hub.model == zaya1_base().replace(activation_dtype="float32")
    assert hub.carried == {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}


def test_the_released_heads_are_half_the_nominal_ones(tmp_path: Path):
    keys = v1_keys(zaya1_8b())
    assert keys["num_attention_heads"] == 16
    assert read(tmp_path, keys).model.num_query_heads == 8


def test_keys_of_unknown_meaning_are_listed(tmp_path: Path):
    assert read(tmp_path, new_keys(zeta=1, alpha=None)).unused == ["alpha", "zeta"]


WRONG = {
    "list for a scalar, new": (
        new_keys(moe_intermediate_size=[24]),
        "moe_intermediate_size=.*one value",
    ),
    "list for a scalar, v2": (
        v2_keys(zaya_mlp_expansion=[0, 16]),
        "zaya_mlp_expansion=.*one value",
    ),
    "unequal list, v1": (v1_keys(zaya_mlp_expansion=[0, 16, 0, 8, 0, 16]), r"\[8, 16\]"),
    "short list, v1": (v1_keys(ffn_hidden_size_list=[0, 48]), "2 entries but zaya_layers has 6"),
    "blocks out of turn, v1": (v1_keys(zaya_layers=["a", "a", 12, 12]), "zaya_layers"),
    "experts that differ, v1": (v1_keys(zaya_layers=["a", 12, "a", 8]), "zaya_layers"),
    "no blocks, v1": (v1_keys(zaya_layers=[]), "zaya_layers"),
    "unknown rope type, flat": (
        new_keys(rope_parameters=ROPE | {"rope_type": "yarn"}),
        "'yarn' is unknown",
    ),
    "unknown rope type, nested": (
        new_keys(rope_parameters={"hybrid": ROPE | {"rope_type": "llama3"}}),
        "llama3",
    ),
    "unknown rope type, stray": (
        new_keys(rope_parameters={"rope_type": "dynamic", "hybrid": ROPE}),
        "dynamic",
    ),
    "rope scaling": (v2_keys(rope_scaling={"type": "linear", "factor": 4.0}), "factor 4.0"),
    "rope scaling, odd": (v2_keys(rope_scaling=True), "rope_scaling=true"),
    "rope for an unknown layer type": (
        new_keys(rope_parameters={"full_attention": ROPE}),
        "full_attention",
    ),
    "rope bases disagree": (new_keys(rope_theta=5e6), "1e.06 and 5e.06"),
    "rope bases disagree, v2": (
        v2_keys(rope_parameters=ROPE | {"rope_theta": 1e4}),
        "different places",
    ),
    "rotary shares disagree": (new_keys(partial_rotary_factor=1.0), "partial_rotary_factor"),
    "no rope base, new": (new_keys(rope_parameters=...), "no RoPE base"),
    "no rope base, v1": (v1_keys(rope_theta=...), "no RoPE base"),
    "no sliding base": (new_keys(SLIDING, rope_parameters=ROPE), "base for sliding layers"),
    "rope base as text": (
        new_keys(rope_parameters=ROPE | {"rope_theta": "1e6"}),
        "must be a number",
    ),
    "clamp_temp": (v2_keys(clamp_temp=True), "clamp_temp=true"),
    "clamp_temp, new": (new_keys(clamp_temp=True), "clamp_temp=true"),
    "two experts a token": (new_keys(num_experts_per_tok=2), "num_experts_per_tok=2"),
    "two experts a token, v2": (v2_keys(moe_router_topk=2), "moe_router_topk=2"),
    "no skip class": (v2_keys(zaya_use_mod=False), "zaya_use_mod=false"),
    "no router state": (v1_keys(zaya_use_eda=False), "zaya_use_eda=false"),
    "other activation": (new_keys(hidden_act="gelu"), 'hidden_act="gelu"'),
    "other norm": (v2_keys(normalization="LayerNorm"), "normalization"),
    "dropout": (new_keys(attention_dropout=0.1), "attention_dropout=0.1"),
    "another family": (new_keys(model_type="llama"), 'model_type="llama"'),
    "kv heads disagree": (v2_keys(num_query_groups=1), "num_query_groups=1"),
    "odd half-layers": (v2_keys(num_hidden_layers=5), "num_hidden_layers=5"),
    "odd expert width": (v2_keys(ffn_hidden_size=47), "ffn_hidden_size=47"),
    "unknown layer type": (new_keys(layer_types=["full_attention"] * 3), "layer_types"),
    "too few layer types": (new_keys(layer_types=["hybrid"] * 2), "2 entries, num_hidden_layers=3"),
    "window missing": (new_keys(SLIDING, sliding_window=None), "sliding_window=null"),
    "windows differ": (v2_keys(SLIDING, swa_layers=[4, 0, 0, 0, 5, 0, 0, 0]), "swa_layers"),
    "window without layers": (v2_keys(sliding_window=4096), "sliding_window=4096"),
    "key missing": (new_keys(head_dim=...), "lacks the key 'head_dim'"),
    "number as text": (new_keys(hidden_size="32"), 'hidden_size="32"'),
    "number as truth": (new_keys(hidden_size=True), "hidden_size=true"),
    "flag as number": (new_keys(attention_bias=1), "attention_bias=1"),
    "heads not divided": (
        new_keys(num_key_value_heads=3),
        "num_attention_heads=4, num_key_value_heads=3",
    ),
    "negative": (new_keys(vocab_size=-1), "vocab_size=-1"),
    "epsilon not finite": (new_keys(rms_norm_eps=float("nan")), "rms_norm_eps=NaN"),
    "no object": ([1], "no JSON object"),
    "layer types nested": (new_keys(layer_types=[["hybrid"]] * 3), "layer_types="),
    "layer types of objects": (new_keys(layer_types=[{}] * 3), "layer_types="),
    "no layers": (new_keys(num_hidden_layers=0, layer_types=...), "num_hidden_layers=0"),
    "more layers than memory": (new_keys(num_hidden_layers=10**12), "num_hidden_layers=10+:"),
    "layers beyond 64 bits": (new_keys(num_hidden_layers=10**20), "num_hidden_layers=10+:"),
    "v2 layers beyond memory": (v2_keys(num_hidden_layers=10**12), "num_hidden_layers=10+:"),
    "epsilon beyond floats": (new_keys(rms_norm_eps=10**400), "rms_norm_eps=10+…: must be"),
    "rope base beyond floats": (new_keys(rope_theta=10**400), "rope_theta=10+…: must be"),
    "nested rope base beyond floats": (
        new_keys(rope_parameters=ROPE | {"rope_theta": 10**400}),
        "rope_theta must be a number",
    ),
    "rope base NaN": (new_keys(rope_parameters=ROPE | {"rope_theta": float("nan")}), "finite"),
    "epsilon zero": (new_keys(rms_norm_eps=0.0), "rms_norm_eps=0.0: must be a positive"),
    "epsilon zero, v2": (v2_keys(norm_epsilon=0.0), "norm_epsilon=0.0: must be a positive"),
    "too many taps": (new_keys(cca_time0=9), "cca_time0=9: at most"),
    "no rotary channels": (
        new_keys(rope_parameters=ROPE | {"partial_rotary_factor": 0.0}),
        "partial_rotary_factor=0.0",
    ),
    "no spread": (new_keys(initializer_range=0.0), "initializer_range=0.0"),
    "no width": (new_keys(hidden_size=0), "hidden_size=0"),
    "heads not divided, v1": (
        v1_keys(cca_num_q_heads=[3, 0] * 3),
        "cca_num_q_heads=3, num_query_groups_list=2",
    ),
    "no head size, v2": (v2_keys(head_dim=...), "lacks the key 'head_dim'"),
    "a base in rope_scaling": (
        v2_keys(rope_scaling={"rope_type": "default", "rope_theta": 5.0}),
        "5 and 1e.06",
    ),
    "rope scaling empty text": (v2_keys(rope_scaling=""), 'rope_scaling=""'),
    "factor true": (new_keys(rope_parameters=ROPE | {"factor": True}), "factor True"),
    "windows on experts": (v2_keys(swa_layers=[0, 4] * 3), "swa_layers=.*expert blocks"),
    "windows no list": (v2_keys(swa_layers={}), "swa_layers={}"),
    "heads on experts, v1": (v1_keys(cca_num_q_heads=[0, 4] * 3), "cca_num_q_heads=.*even places"),
    "width on attention, v1": (v1_keys(zaya_mlp_expansion=[16, 0] * 3), "zaya_mlp_expansion="),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_by_key(name: str, tmp_path: Path):
    keys, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as error:
        read(tmp_path, keys)
    assert str(error.value).startswith(str(tmp_path / "config.json"))


def test_errors_name_the_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=str(tmp_path / "config.json")):
        read(tmp_path, new_keys(num_experts_per_tok=2))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=f"{tmp_path / 'config.json'} cannot be read as JSON"):
        read_hub_config(tmp_path / "config.json")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*PRESETS, "sliding", "biases"])
def test_what_is_written_is_read_back(layout: str, name: str, tmp_path: Path):
    others = {
        "sliding": SLIDING,
        "biases": TINY.replace(attention_bias=True, head_bias=True, tie_embeddings=False),
    }
    model: ModelConfig = others.get(name) or PRESETS[name]()
    carried = {"eos_token_id": [1, 106], "bos_token_id": 2, "pad_token_id": None}
    keys = hub_config_keys(model, LAYOUTS[layout], carried, model.activation_dtype)
    hub = read(tmp_path, keys)
    assert hub.model == model
    assert hub.layout.name == layout
    assert hub.carried == carried
    assert hub.unused == []


def test_a_window_of_one_cannot_be_said_in_the_old_layout():
    model = TINY.replace(layer_pattern=(LayerType.SLIDING,), sliding_window=1)
    with pytest.raises(ConfigError, match="sliding_window=1"):
        hub_config_keys(model, LAYOUTS["zyphra"], {}, "float32")
