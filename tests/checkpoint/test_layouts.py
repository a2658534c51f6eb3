"""The declared names and shapes are those of the releases and of the model's own tree."""

from __future__ import annotations

import math
import re

import jax
import numpy as np
import pytest

from tests.checkpoint.hub_folders import SLIDING, TINY, random_tensors
from zaya_jax.checkpoint.layouts import LAYOUTS, TRANSFORMERS, ZYPHRA, variables_from_tensors
from zaya_jax.config import ModelConfig
from zaya_jax.model.transformer import Transformer
from zaya_jax.presets import zaya1_8b, zaya1_74b_preview

VARIANTS = {
    "tiny": TINY,
    "sliding": SLIDING,
    "one_layer": TINY.replace(num_layers=1),
    "biases": TINY.replace(attention_bias=True, head_bias=True, tie_embeddings=False),
    "convolutions": TINY.replace(depthwise_conv_width=4, grouped_conv_width=3),
    "released": zaya1_8b(),
}


def names(layout: str, config: ModelConfig) -> list[str]:
    return [name for rule in LAYOUTS[layout].rules(config) for name in rule.names(config)]


@pytest.mark.parametrize(
    ("layout", "config", "tensors"),
    [
        ("zyphra", zaya1_8b(), 2_483),
        ("transformers", zaya1_8b(), 1_283),
        ("zyphra", zaya1_74b_preview(), 4_683),
        ("transformers", zaya1_74b_preview(), 1_923),
    ],
)
def test_released_models_have_the_published_number_of_tensors(
    layout: str, config: ModelConfig, tensors: int
):
    found = names(layout, config)
    assert len(found) == len(set(found)) == tensors


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_released_model_has_the_published_number_of_parameters(layout: str):
    config = zaya1_8b()
    rules = LAYOUTS[layout].rules(config)
    assert sum(math.prod(rule.shape(config)) for rule in rules) == 8_840_489_464


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_declared_shapes_are_those_of_the_model(layout: str, variant: str):
    config = VARIANTS[variant]
    tokens = jax.ShapeDtypeStruct((1, 2), np.int32)
    tree = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens)
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    expected = {tuple(key.key for key in path): leaf.shape for path, leaf in leaves}
    declared = {rule.path: rule.shape(config) for rule in LAYOUTS[layout].rules(config)}
    assert declared == expected


def renamed(legacy: str, layers: int) -> tuple[str, int | None]:
    """The published mapping from zyphra to transformers names, written down a second time.

    Returns the new name and, for experts, the place in the stack.
    """
    last = f"model.layers.{layers - 1}.post_mlp_residual_scale."
    if legacy.startswith("model.res_scale."):
        return legacy.replace("model.res_scale.", last), None
    if legacy == "model.final_norm.weight":
        return "model.norm.weight", None
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", legacy)
    if match is None:
        return legacy, None
    half, rest = int(match.group(1)), match.group(2)
    layer = f"model.layers.{half // 2}."
    if rest.startswith("res_scale."):
        vector = rest.removeprefix("res_scale.")
        if half == 0:
            return f"model.input_{vector}", None
        if half % 2:
            return f"{layer}post_attention_residual_scale.{vector}", None
        return f"model.layers.{half // 2 - 1}.post_mlp_residual_scale.{vector}", None
    norm = "post_attention_layernorm" if half % 2 else "input_layernorm"
    table = (
        (r"input_norm\.", norm + "."),
        (r"qkv\.linear_([qk])\.", r"qkv_proj.\1_proj."),
        (r"qkv\.val_proj1\.", "qkv_proj.v_proj_current."),
        (r"qkv\.val_proj2\.", "qkv_proj.v_proj_delayed."),
        (r"qkv\.conv_qk\.0\.", "qkv_proj.conv_qk_depthwise."),
        (r"qkv\.conv_qk\.1\.", "qkv_proj.conv_qk_grouped."),
        (r"qkv\.temp$", "qk_norm.temp"),
        (r"zaya_block\.router\.", "mlp.gate."),
        (r"gate\.rmsnorm_eda\.", "gate.router_mlp.norm."),
        (r"router_mlp\.0\.", "router_mlp.fc1."),
        (r"router_mlp\.2\.", "router_mlp.fc2."),
        (r"router_mlp\.4\.", "router_mlp.out_proj."),
    )
    for pattern, replacement in table:
        rest = re.sub(pattern, replacement, rest)
    expert = re.fullmatch(
        r"zaya_block\.experts\.local_experts\.(\d+)\.linear_fc([12])\.weight", rest
    )
    if expert is None:
        return layer + rest, None
    name = {"1": "gate_up_proj", "2": "down_proj"}[expert.group(2)]
    return f"{layer}mlp.experts.{name}", int(expert.group(1))


@pytest.mark.parametrize("config", [TINY, SLIDING], ids=["tiny", "sliding"])
def test_the_old_layout_maps_to_the_new_one_as_published(config: ModelConfig):
    """Every tensor has its own numbers, so a shifted scale or a swapped expert shows."""
    old = random_tensors("zyphra", config)
    new = random_tensors("transformers", config)
    reached = set()
    for name, tensor in old.items():
        target, expert = renamed(name, config.num_layers)
        expected = new[target] if expert is None else new[target][expert]
        np.testing.assert_array_equal(tensor, expected, err_msg=name)
        reached.add(target)
    assert reached == set(new)


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ("3.self_attn.temp", "3.self_attn.qk_norm.temp"),
        ("3.post_attention_norm.weight", "3.post_attention_layernorm.weight"),
        ("3.zaya_block.router.down_proj.weight", "3.mlp.gate.down_proj.weight"),
        ("3.zaya_block.router.rmsnorm_eda.weight", "3.mlp.gate.router_mlp.norm.weight"),
        ("3.zaya_block.router.router_mlp.2.bias", "3.mlp.gate.router_mlp.fc2.bias"),
        ("3.zaya_block.experts.down_proj", "3.mlp.experts.down_proj"),
        ("3.mlp.gate.router_mlp.rmsnorm_eda.weight", "3.mlp.gate.router_mlp.norm.weight"),
    ],
)
def test_transitional_names_of_the_new_layout(old: str, today: str):
    assert TRANSFORMERS.canonical("model.layers." + old) == "model.layers." + today


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ("2.self_attn.cca.temp", "2.self_attn.qkv.temp"),
        ("3.moe.router.down_proj.bias", "3.zaya_block.router.down_proj.bias"),
        ("3.moe.zaya_block.router.router_mlp.0.bias", "3.zaya_block.router.router_mlp.0.bias"),
        (
            "3.moe.experts.11.linear_fc1.weight",
            "3.zaya_block.experts.local_experts.11.linear_fc1.weight",
        ),
        (
            "3.zaya_block.experts.11.linear_fc1.weight",
            "3.zaya_block.experts.local_experts.11.linear_fc1.weight",
        ),
    ],
)
def test_names_of_ports_of_the_old_layout(old: str, today: str):
    assert ZYPHRA.canonical("model.layers." + old) == "model.layers." + today


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_names_of_today_stay(layout):
    for name in names(layout.name, TINY):
        assert layout.canonical(name) == name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_make_the_same_tree(layout: str):
    config = SLIDING
    trees = [
        variables_from_tensors(LAYOUTS[name].rules(config), config, random_tensors(name, config))
        for name in (layout, "transformers")
    ]
    jax.tree.map(np.testing.assert_array_equal, *trees)
