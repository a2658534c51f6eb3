"""Every way in which a released folder can be wrong is one error that names tensor and file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoint.hub_folders import (
    TINY,
    Tensors,
    new_keys,
    random_tensors,
    v1_keys,
    v2_keys,
    write_folder,
)
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.config import ConfigError

KEYS = {"transformers": new_keys(), "zyphra": v2_keys()}
FC1 = "model.layers.5.zaya_block.experts.local_experts.{}.linear_fc1.weight"


def refused(folder: Path, message: str, *, because_of: str = "") -> None:
    """Nothing opens, converts or loads the folder; the error says why and where."""
    target = folder.parent / "converted"
    with pytest.raises((CheckpointError, ConfigError), match=message) as error:
        convert(folder, target)
    assert (because_of or str(folder)) in str(error.value)
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]
    with pytest.raises((CheckpointError, ConfigError), match=message):
        load_checkpoint(folder)


Change = Callable[[Tensors], None]


def drop(name: str) -> Change:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, array: np.ndarray) -> Change:
    return lambda tensors: tensors.update({name: array})


def rename(old: str, new: str) -> Change:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def renumber_experts(tensors: Tensors) -> None:
    """Numbers as text-sorting code makes them: two digits everywhere."""
    for name in [name for name in tensors if ".local_experts." in name]:
        head, tail = name.split(".local_experts.")
        number, rest = tail.split(".", 1)
        tensors[f"{head}.local_experts.{int(number):02d}.{rest}"] = tensors.pop(name)


def shift_experts(tensors: Tensors) -> None:
    """A shard of the last experts only, in a model of twelve."""
    for number in range(10):
        del tensors[FC1.format(number)]


def transpose(name: str) -> Change:
    return lambda tensors: tensors.update({name: np.ascontiguousarray(tensors[name].T)})


WRONG_TENSORS: dict[str, tuple[str, Change, str]] = {
    "missing": (
        "transformers",
        drop("model.layers.1.self_attn.qk_norm.temp"),
        r"lacks tensor 'model\.layers\.1\.self_attn\.qk_norm\.temp' \(1 in all\)",
    ),
    "missing balancing biases": (
        "zyphra",
        drop("model.layers.3.zaya_block.router.balancing_biases"),
        "lacks tensor 'model.layers.3.zaya_block.router.balancing_biases'",
    ),
    "missing router norm": (
        "transformers",
        drop("model.layers.0.mlp.gate.router_mlp.norm.weight"),
        "lacks tensor 'model.layers.0.mlp.gate.router_mlp.norm.weight'",
    ),
    "missing final scale": (
        "zyphra",
        drop("model.res_scale.residual_scale"),
        "lacks tensor 'model.res_scale.residual_scale'",
    ),
    "extra": (
        "transformers",
        put("model.layers.0.mlp.shared.weight", np.zeros(2, np.float32)),
        r"model\.safetensors: unknown tensor 'model\.layers\.0\.mlp\.shared\.weight'",
    ),
    "extra state scale in the first layer": (
        "transformers",
        put("model.layers.0.mlp.gate.router_states_scale", np.zeros(16, np.float32)),
        "unknown tensor 'model.layers.0.mlp.gate.router_states_scale'",
    ),
    "a head though it is tied": (
        "transformers",
        put("lm_head.weight", np.zeros((48, 32), np.float32)),
        "unknown tensor 'lm_head.weight'.*tied",
    ),
    "renamed": (
        "transformers",
        rename("model.norm.weight", "model.norms.weight"),
        r"lacks tensor 'model.norm.weight' .*unknown tensor 'model.norms.weight'.*renamed",
    ),
    "two names of one": (
        "transformers",
        put("model.layers.1.self_attn.temp", np.zeros(2, np.float32)),
        "'model.layers.1.self_attn.qk_norm.temp' and 'model.layers.1.self_attn.temp' are two names",
    ),
    "wrongly shaped": (
        "zyphra",
        put("model.layers.1.input_norm.weight", np.zeros(33, np.float32)),
        r"model\.safetensors: tensor 'model\.layers\.1\.input_norm\.weight' has shape \[33\]"
        r", config\.json asks for \[32\]",
    ),
    "wrong number of axes": (
        "transformers",
        put("model.norm.weight", np.zeros((1, 32), np.float32)),
        r"tensor 'model.norm.weight' has shape \[1, 32\]",
    ),
    "no unit axis": (
        "transformers",
        put(
            "model.layers.0.self_attn.qkv_proj.conv_qk_depthwise.weight",
            np.zeros((48, 2), np.float32),
        ),
        r"conv_qk_depthwise.weight' has shape \[48, 2\], config.json asks for \[48, 1, 2\]",
    ),
    "transposed": (
        "transformers",
        transpose("model.layers.2.self_attn.qkv_proj.k_proj.weight"),
        r"k_proj.weight' has shape \[32, 16\], .* \[16, 32\]: transposed",
    ),
    "transposed expert": (
        "zyphra",
        transpose(FC1.format(11)),
        r"local_experts.11.linear_fc1.weight' has shape \[32, 48\].*transposed",
    ),
    "layers of two dtypes": (
        "transformers",
        put("model.layers.2.input_layernorm.weight", np.zeros(32, ml_dtypes.bfloat16)),
        "'model.layers.2.input_layernorm.weight' is bfloat16.*must be alike",
    ),
    "experts numbered as text": (
        "zyphra",
        renumber_experts,
        r"lacks tensor '.*local_experts\.0\.linear_fc1.*unknown tensor '.*local_experts\.0",
    ),
    "experts from ten on": (
        "zyphra",
        shift_experts,
        r"lacks tensor 'model\.layers\.5\.zaya_block\.experts\.local_experts\.0\.",
    ),
    "one expert too many": (
        "zyphra",
        put(FC1.format(12), np.zeros((48, 32), np.float32)),
        "unknown tensor 'model.layers.5.zaya_block.experts.local_experts.12.linear_fc1.weight'",
    ),
    "a layer number with zeros before it": (
        "transformers",
        put("model.layers.0009.input_layernorm.weight", np.zeros(32, np.float32)),
        r"unknown tensor 'model\.layers\.0009\.input_layernorm\.weight'",
    ),
    "a layer number in other digits": (
        "transformers",
        put("model.layers.\u0669.input_layernorm.weight", np.zeros(32, np.float32)),
        "unknown tensor 'model.layers.\u0669.input_layernorm.weight'",
    ),
    "a layer number of many digits": (
        "transformers",
        put(f"model.layers.{'9' * 5000}.input_layernorm.weight", np.zeros(32, np.float32)),
        "unknown tensor 'model.layers.999",
    ),
    "no layers": (
        "transformers",
        lambda tensors: (
            [tensors.pop(name) for name in list(tensors) if ".layers." in name]
            and put("x.input_layernorm.weight", np.zeros(32, np.float32))(tensors)
        ),
        "describes 3 layers .* but no tensors of layers",
    ),
    "no known layout": (
        "transformers",
        lambda tensors: (
            [tensors.pop(name) for name in list(tensors) if "layernorm" in name] and None
        ),
        "layout cannot be told",
    ),
    "both layouts": (
        "transformers",
        put("model.layers.0.input_norm.weight", np.zeros(32, np.float32)),
        "layout cannot be told: tensor names contain both",
    ),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_wrong_tensors(name: str, tmp_path: Path):
    layout, change, message = WRONG_TENSORS[name]
    tensors = random_tensors(layout, TINY)
    change(tensors)
    refused(write_folder(tmp_path / "model", KEYS[layout], tensors), message)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("layout", "tensor"),
    [
        ("zyphra", FC1.format(10)),
        ("transformers", "model.layers.2.mlp.experts.down_proj"),
        ("transformers", "model.layers.2.mlp.gate.balancing_biases"),
    ],
)
def test_numbers_that_are_none(layout: str, tensor: str, dtype: type, value: float, tmp_path: Path):
    tensors = random_tensors(layout, TINY, dtype)
    tensors[tensor].reshape(-1)[-1] = value
    folder = write_folder(tmp_path / "model", KEYS[layout], tensors)
    refused(folder, rf"model\.safetensors: tensor '{tensor}' holds {value}")


def test_a_tensor_full_of_nan(tmp_path: Path):
    tensors = random_tensors("transformers", TINY)
    tensors["model.norm.weight"][:] = np.nan
    folder = write_folder(tmp_path / "model", KEYS["transformers"], tensors)
    refused(folder, "tensor 'model.norm.weight' holds nan")


WRONG_CONFIGS: dict[str, tuple[str, dict, str]] = {
    "too few layers": (
        "transformers",
        new_keys(TINY.replace(num_layers=2)),
        r"2 layers.*layers\.2\.",
    ),
    "too many layers": (
        "transformers",
        new_keys(TINY.replace(num_layers=4)),
        r"4 layers.*layers\.2\.",
    ),
    "too many layers, v1": (
        "zyphra",
        v1_keys(TINY.replace(num_layers=5)),
        r"10 layers.*layers\.5\.",
    ),
    "layers without number": (
        "transformers",
        new_keys(num_hidden_layers=10**9, layer_types=...),
        r"describes 1000000000 layers.*layers\.2\.",
    ),
    "layers without number, v2": (
        "zyphra",
        v2_keys(num_hidden_layers=10**9),
        r"describes 1000000000 layers.*layers\.5\.",
    ),
    "experts without number": (
        "zyphra",
        v2_keys(num_experts=10**8),
        r"config\.json asks for 300,000,000 tensors.*num_experts=100000000",
    ),
    "new config, old tensors": ("zyphra", new_keys(), "new configuration.*of the zyphra layout"),
    "v2 config, new tensors": ("transformers", v2_keys(), "v2 configuration.*transformers layout"),
    "v1 config, new tensors": ("transformers", v1_keys(), "v1 configuration.*transformers layout"),
    "twice the heads": (
        "transformers",
        new_keys(num_attention_heads=8),
        "q_proj.weight'.*num_attention_heads gives 8 heads of 8 channels, the tensor has 4",
    ),
    "twice the heads, v2": (
        "zyphra",
        v2_keys(num_attention_heads=8),
        "linear_q.weight'.*num_attention_heads gives 8 heads of 8 channels, the tensor has 4",
    ),
    "fewer experts": ("transformers", new_keys(num_experts=11), r"\[12, 17\]|has shape \[1[23], "),
    "untied, but no head": (
        "transformers",
        new_keys(tie_word_embeddings=False),
        "lacks tensor 'lm_head.weight'",
    ),
    "list for a scalar": ("zyphra", v2_keys(ffn_hidden_size=[0, 48]), "ffn_hidden_size="),
    "two experts a token": ("zyphra", v2_keys(num_experts_per_tok=2), "num_experts_per_tok=2"),
    "clamped temperatures": ("zyphra", v2_keys(clamp_temp=True), "clamp_temp=true"),
    "unknown RoPE": (
        "transformers",
        new_keys(rope_parameters={"rope_type": "yarn", "rope_theta": 1e6}),
        "'yarn' is unknown",
    ),
}


@pytest.mark.parametrize("name", WRONG_CONFIGS)
def test_configurations_that_do_not_belong(name: str, tmp_path: Path):
    layout, keys, message = WRONG_CONFIGS[name]
    refused(write_folder(tmp_path / "model", keys, random_tensors(layout, TINY)), message)
