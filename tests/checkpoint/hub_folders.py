"""Tiny released folders of every layout and generation, written without the code under test.

The configurations are spelled out by hand from the keys that the releases have.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from zaya_jax.checkpoint.layouts import LAYOUTS
from zaya_jax.config import LayerType, ModelConfig

TINY = ModelConfig(
    vocab_size=48,
    hidden_size=32,
    num_layers=3,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_experts=12,  # two digits: numeric and lexical order differ
    expert_intermediate_size=24,
    router_hidden_size=16,
    max_position_embeddings=64,
    rope_theta=1e6,
    activation_dtype="float32",
)
SLIDING = TINY.replace(
    num_layers=4, layer_pattern=(LayerType.SLIDING, LayerType.FULL), sliding_window=5
)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

Tensors = dict[str, np.ndarray]

_FORMAT_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def random_tensors(layout: str, config: ModelConfig, dtype: Any = np.float32) -> Tensors:
    """Random tensors by name. The same leaf has the same numbers in every layout."""
    tensors: Tensors = {}
    for rule in LAYOUTS[layout].rules(config):
        rng = np.random.default_rng(zlib.crc32("/".join(rule.path).encode()))
        leaf = rng.standard_normal(rule.shape(config)).astype(dtype)
        for position in rule.positions(config):
            part = leaf[position].reshape(rule.tensor_shape(config))
            tensors[rule.tensor_name(config, *position)] = part
    return tensors


def new_keys(config: ModelConfig = TINY, **changes: Any) -> dict[str, Any]:
    """What transformers writes."""
    kinds = {LayerType.FULL: "hybrid", LayerType.SLIDING: "hybrid_sliding"}
    rope = {"rope_type": "default", "partial_rotary_factor": 0.5}
    keys = {
        "architectures": ["ZayaForCausalLM"],
        "model_type": "zaya",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 2,
        "cca_time0": 2,
        "cca_time1": 2,
        "dtype": "float32",
        "eos_token_id": 6,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "layer_types": [kinds[kind] for kind in config.layer_types],
        "lm_head_bias": False,
        "max_position_embeddings": config.max_position_embeddings,
        "moe_intermediate_size": config.expert_intermediate_size,
        "num_attention_heads": config.num_query_heads,
        "num_experts": config.num_experts,
        "num_experts_per_tok": 1,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "hybrid": {**rope, "rope_theta": config.rope_theta},
            "hybrid_sliding": {**rope, "rope_theta": config.sliding_rope_theta},
        },
        "router_hidden_size": config.router_hidden_size,
        "sliding_window": config.sliding_window,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
    return _changed(keys, changes)


def v2_keys(config: ModelConfig = TINY, **changes: Any) -> dict[str, Any]:
    """What the first ZAYA1-8B came with."""
    keys = {
        **_legacy_keys(config),
        "num_attention_heads": config.num_query_heads,
        "num_query_groups": config.num_kv_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "ffn_hidden_size": 2 * config.expert_intermediate_size,
        "zaya_mlp_expansion": config.router_hidden_size,
        "num_experts": config.num_experts,
        "num_hidden_layers": 2 * config.num_layers,
        "residual_in_fp32": True,
        "clamp_temp": False,
        "cca_time0": 2,
        "cca_time1": 2,
        "mamba_cache_dtype": "float32",
        "eos_token_id": 6,
    }
    if config.sliding_window is not None:
        windows = {LayerType.FULL: 0, LayerType.SLIDING: config.sliding_window - 1}
        keys["swa_layers"] = [n for kind in config.layer_types for n in (windows[kind], 0)]
        keys["swa_rotary_base"] = config.sliding_rope_theta
    return _changed(keys, changes)


def v1_keys(config: ModelConfig = TINY, **changes: Any) -> dict[str, Any]:
    """What ZAYA1-base came with: lists, and twice the real number of heads."""
    layers = config.num_layers
    keys = {
        **_legacy_keys(config),
        "cca_num_q_heads": [config.num_query_heads, 0] * layers,
        "num_query_groups_list": [config.num_kv_heads, 0] * layers,
        "ffn_hidden_size_list": [0, 2 * config.expert_intermediate_size] * layers,
        "zaya_layers": ["a", config.num_experts] * layers,
        "zaya_mlp_expansion": [0, config.router_hidden_size] * layers,
        "num_hidden_layers": 2 * layers,
        "num_attention_heads": config.hidden_size // config.head_dim,
        "num_key_value_heads": 2,
        "kv_channels": config.head_dim,
        "residual_in_fp32": False,
        "fused_add_norm": False,
        "apply_rope_fusion": True,
        "bias_activation_fusion": True,
        "activation_func_fp8_input_store": False,
        "sliding_window": None,
        "eos_token_id": 1,
    }
    return _changed(keys, changes)


def _legacy_keys(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["ZayaForCausalLM"],
        "model_type": "zaya",
        "torch_dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "max_position_embeddings": config.max_position_embeddings,
        "norm_epsilon": 1e-05,
        "rope_theta": config.rope_theta,
        "rope_scaling": False,
        "partial_rotary_factor": 0.5,
        "cca": True,
        "activation_func": "swiglu",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "moe_router_topk": 1,
        "scale_residual_merge": True,
        "zaya_use_mod": True,
        "zaya_use_eda": True,
        "zaya_high_prec": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "lm_head_bias": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
    }


def _changed(keys: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Keys replaced, or removed where the change is `...`."""
    merged = {**keys, **changes}
    return {key: value for key, value in merged.items() if value is not ...}


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """The format in its plainest form."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = np.ascontiguousarray(tensor).tobytes()
        header[name] = {
            "dtype": _FORMAT_NAMES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    write_raw_safetensors(path, header, data)


def write_raw_safetensors(path: Path, header: Any, data: bytes) -> None:
    """A file with any header, true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_folder(
    folder: Path,
    keys: dict[str, Any],
    tensors: Tensors,
    *,
    shards: int = 1,
    with_index: bool = True,
) -> Path:
    """A released folder; its tensors are dealt out to the shards in turn."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(keys))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        write_safetensors(folder / name, part)
        weight_map.update(dict.fromkeys(part, name))
    if with_index:
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read_folder(folder: Path) -> Tensors:
    """All tensors of a released folder, by a reader of a few lines."""
    dtypes = {"F32": np.float32, "BF16": BFLOAT16, "F16": np.float16}
    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            assert name not in tensors
            values = np.frombuffer(raw[start:end], dtypes[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def assert_same_bytes(actual: Tensors, expected: Tensors) -> None:
    """Equal names, dtypes, shapes and bytes."""
    assert set(actual) == set(expected)
    for name, tensor in expected.items():
        found = actual[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        assert found.tobytes() == np.ascontiguousarray(tensor).tobytes(), name
