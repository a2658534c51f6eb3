"""Names of the released tensors for every leaf of the variables tree, one column a layout.

Sources: the state dict of transformers' `ZayaForCausalLM` (layout `transformers`) and the tensor
names of the first releases (layout `zyphra`). The latter numbers attention and expert blocks as
layers of their own and applies a residual scale on entry to the next block, so the scale after our
layer's expert block is filed under the next attention block, and the last one under the model.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.tensor_rule import (
    Precision,
    Rules,
    TensorRule,
    get_leaf,
    set_leaf,
)
from zaya_jax.config import ModelConfig
from zaya_jax.released import require_released

# Each row: leaf below `params`, its axes, its name in the transformers and in the zyphra layout.
# Numbers in braces: {layer} of ours; {attention} = 2 layer, {experts} = 2 layer + 1 and
# {next} = 2 layer + 2 of the zyphra layout's half-layers; {expert}.
Row = tuple[str, str, str, str]

_OUTSIDE_LAYERS: tuple[Row, ...] = (
    ("embedding", "vocab embed", "model.embed_tokens.weight", "model.embed_tokens.weight"),
    (
        "input_scale",
        "embed",
        "model.input_hidden_states_scale",
        "model.layers.0.res_scale.hidden_states_scale",
    ),
    (
        "input_bias",
        "embed",
        "model.input_hidden_states_bias",
        "model.layers.0.res_scale.hidden_states_bias",
    ),
    ("final_norm.weight", "embed", "model.norm.weight", "model.final_norm.weight"),
)
_UNTIED_HEAD: Row = ("head_weight", "vocab embed", "lm_head.weight", "lm_head.weight")
_HEAD_BIAS: Row = ("head_bias", "vocab", "lm_head.bias", "lm_head.bias")

# In layers, names follow "model.layers.".
_PROJECTIONS: tuple[Row, ...] = (
    (
        "query",
        "query embed",
        "{layer}.self_attn.qkv_proj.q_proj",
        "{attention}.self_attn.qkv.linear_q",
    ),
    ("key", "kv embed", "{layer}.self_attn.qkv_proj.k_proj", "{attention}.self_attn.qkv.linear_k"),
    (
        "value_current",
        "half_kv embed",
        "{layer}.self_attn.qkv_proj.v_proj_current",
        "{attention}.self_attn.qkv.val_proj1",
    ),
    (
        "value_delayed",
        "half_kv embed",
        "{layer}.self_attn.qkv_proj.v_proj_delayed",
        "{attention}.self_attn.qkv.val_proj2",
    ),
    ("output", "embed query", "{layer}.self_attn.o_proj", "{attention}.self_attn.o_proj"),
)
_CONVOLUTIONS: tuple[Row, ...] = (
    (
        "depthwise_conv",
        "conv_channels depthwise_taps",
        "{layer}.self_attn.qkv_proj.conv_qk_depthwise.weight",
        "{attention}.self_attn.qkv.conv_qk.0.weight",
    ),
    (
        "depthwise_conv_bias",
        "conv_channels",
        "{layer}.self_attn.qkv_proj.conv_qk_depthwise.bias",
        "{attention}.self_attn.qkv.conv_qk.0.bias",
    ),
    (
        "grouped_conv",
        "conv_channels conv_group grouped_taps",
        "{layer}.self_attn.qkv_proj.conv_qk_grouped.weight",
        "{attention}.self_attn.qkv.conv_qk.1.weight",
    ),
    (
        "grouped_conv_bias",
        "conv_channels",
        "{layer}.self_attn.qkv_proj.conv_qk_grouped.bias",
        "{attention}.self_attn.qkv.conv_qk.1.bias",
    ),
    (
        "key_temperature",
        "kv_heads",
        "{layer}.self_attn.qk_norm.temp",
        "{attention}.self_attn.qkv.temp",
    ),
)
_NORMS: tuple[Row, ...] = (
    (
        "attention_norm.weight",
        "embed",
        "{layer}.input_layernorm.weight",
        "{attention}.input_norm.weight",
    ),
    (
        "expert_norm.weight",
        "embed",
        "{layer}.post_attention_layernorm.weight",
        "{experts}.input_norm.weight",
    ),
)
# Router names follow "{layer}.mlp.gate." and "{experts}.zaya_block.router.".
_ROUTER: tuple[Row, ...] = (
    ("router.down.weight", "router embed", "down_proj.weight", "down_proj.weight"),
    ("router.down.bias", "router", "down_proj.bias", "down_proj.bias"),
    ("router.norm.weight", "router", "router_mlp.norm.weight", "rmsnorm_eda.weight"),
    ("router.fc1.weight", "router router_in", "router_mlp.fc1.weight", "router_mlp.0.weight"),
    ("router.fc1.bias", "router", "router_mlp.fc1.bias", "router_mlp.0.bias"),
    ("router.fc2.weight", "router router_in", "router_mlp.fc2.weight", "router_mlp.2.weight"),
    ("router.fc2.bias", "router", "router_mlp.fc2.bias", "router_mlp.2.bias"),
    (
        "router.out.weight",
        "router_classes router",
        "router_mlp.out_proj.weight",
        "router_mlp.4.weight",
    ),
)
_EXPERTS: tuple[Row, ...] = (
    (
        "gate_up",
        "experts gate_up embed",
        "{layer}.mlp.experts.gate_up_proj",
        "{experts}.zaya_block.experts.local_experts.{expert}.linear_fc1.weight",
    ),
    (
        "down",
        "experts embed mlp",
        "{layer}.mlp.experts.down_proj",
        "{experts}.zaya_block.experts.local_experts.{expert}.linear_fc2.weight",
    ),
)
_RESIDUAL_VECTORS = (
    "hidden_states_scale",
    "hidden_states_bias",
    "residual_scale",
    "residual_bias",
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way of naming the tensors of a released checkpoint."""

    name: str
    marker: str  # part of a name that only this layout has
    layer_stride: int  # numbered layers in the files for one of ours
    aliases: tuple[tuple[str, str], ...]  # pattern and replacement, for names met in older files

    def rules(self, config: ModelConfig) -> Rules:
        """One rule for every leaf of the variables tree. A tied head has no tensor.

        Raises:
          ConfigError: for a variant of the architecture that no release has.
        """
        require_released(config, "no layout of checkpoints, plan or mesh knows its tensors")
        return _layout_rules(config, self)

    def canonical(self, name: str) -> str:
        """The name of today for a tensor named in any way that this layout ever had."""
        for pattern, replacement in self.aliases:
            name = re.sub(pattern, replacement, name)
        return name


def transformers_layout(config: ModelConfig) -> Rules:
    """Rules for the layout that transformers loads."""
    return TRANSFORMERS.rules(config)


def _layout_rules(config: ModelConfig, layout: Layout) -> Rules:
    column = 2 if layout is TRANSFORMERS else 3
    gate = ("{layer}.mlp.gate.", "{experts}.zaya_block.router.")[column - 2]
    matrix, kept = Precision.MATRIX, Precision.KEPT

    def outside(row: Row, precision: Precision) -> TensorRule:
        return TensorRule(
            ("params", *row[0].split(".")), row[column], tuple(row[1].split()), precision
        )

    def layered(path: str, axes: str, name: str, precision: Precision, **more: Any) -> TensorRule:
        full_path = ("params", "layers", *path.split("."))
        stacked = 2 if "{expert}" in name else 1
        full_axes = ("layers", *axes.split())
        return TensorRule(full_path, "model.layers." + name, full_axes, precision, stacked, **more)

    rules = [outside(row, matrix if row[0] == "embedding" else kept) for row in _OUTSIDE_LAYERS]
    if not config.tie_embeddings:
        rules.append(outside(_UNTIED_HEAD, matrix))
    if config.head_bias:
        rules.append(outside(_HEAD_BIAS, kept))
    for row in _PROJECTIONS:
        path, name = f"attention.{row[0]}.", row[column]
        rules.append(layered(path + "weight", row[1], name + ".weight", matrix))
        if config.attention_bias:
            rules.append(layered(path + "bias", row[1].split()[0], name + ".bias", kept))
    for row in _CONVOLUTIONS:
        unit_axis = 1 if row[0] == "depthwise_conv" else None
        path = f"attention.{row[0]}"
        rules.append(layered(path, row[1], row[column], kept, unit_axis=unit_axis))
    rules += [layered(row[0], row[1], row[column], kept) for row in _NORMS]
    rules += [layered(row[0], row[1], gate + row[column], kept) for row in _ROUTER]
    rules += [layered(f"experts.{row[0]}", row[1], row[column], matrix) for row in _EXPERTS]
    for vector in _RESIDUAL_VECTORS:
        inner, after = _residual_names(layout, vector)
        last = f"model.res_scale.{vector}" if layout is ZYPHRA else None
        rules.append(layered(f"attention_residual.{vector}", "embed", inner, kept))
        rules.append(layered(f"expert_residual.{vector}", "embed", after, kept, last_name=last))
    return (*rules, *_router_state_rules(config, "model.layers." + gate))


def _residual_names(layout: Layout, vector: str) -> tuple[str, str]:
    """Names of a residual scale after the attention block and after the expert block."""
    if layout is ZYPHRA:
        return "{experts}.res_scale." + vector, "{next}.res_scale." + vector
    return (
        "{layer}.post_attention_residual_scale." + vector,
        "{layer}.post_mlp_residual_scale." + vector,
    )


def _router_state_rules(config: ModelConfig, gate: str) -> Iterator[TensorRule]:
    """Leaves that are no part of `params/layers`: the first layer has no state scale."""
    if config.num_layers > 1:
        yield TensorRule(
            ("params", "router_state_scale"),
            gate + "router_states_scale",
            ("later_layers", "router"),
            Precision.KEPT,
            stacked=1,
            first_layer=1,
        )
    yield TensorRule(
        ("balancing", "biases"),
        gate + "balancing_biases",
        ("layers", "router_classes"),
        Precision.BALANCING,
        stacked=1,
    )


TRANSFORMERS = Layout(
    "transformers",
    marker=".input_layernorm.",
    layer_stride=1,
    aliases=(  # names while the layout was under review in May 2026
        (r"\.self_attn\.temp$", ".self_attn.qk_norm.temp"),
        (r"\.post_attention_norm\.", ".post_attention_layernorm."),
        (r"\.(?:mlp\.)?zaya_block\.router\.", ".mlp.gate."),
        (r"\.(?:mlp\.)?zaya_block\.experts\.", ".mlp.experts."),
        (r"\.mlp\.gate\.(?:router_mlp\.)?rmsnorm_eda\.", ".mlp.gate.router_mlp.norm."),
        (r"\.router_mlp\.0\.", ".router_mlp.fc1."),
        (r"\.router_mlp\.2\.", ".router_mlp.fc2."),
        (r"\.router_mlp\.4\.", ".router_mlp.out_proj."),
    ),
)
ZYPHRA = Layout(
    "zyphra",
    marker=".input_norm.",
    layer_stride=2,
    aliases=(  # names in ports
        (r"\.self_attn\.cca\.", ".self_attn.qkv."),
        (r"\.moe\.zaya_block\.", ".zaya_block."),
        (r"\.moe\.(router|experts)\.", r".zaya_block.\1."),
        (r"\.zaya_block\.experts\.(\d+)\.", r".zaya_block.experts.local_experts.\1."),
    ),
)
LAYOUTS = {layout.name: layout for layout in (TRANSFORMERS, ZYPHRA)}


def variables_from_tensors(
    rules: Rules, config: ModelConfig, tensors: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The variables tree held by named tensors.

    Raises:
      CheckpointError: for a tensor that is missing or that no rule names.
    """
    expected = {name for rule in rules for name in rule.names(config)}
    missing, extra = sorted(expected - set(tensors)), sorted(set(tensors) - expected)
    if missing:
        raise CheckpointError(f"checkpoint lacks {len(missing)} tensors, first {missing[0]!r}")
    if extra:
        raise CheckpointError(f"checkpoint has {len(extra)} unknown tensors, first {extra[0]!r}")
    variables: dict[str, Any] = {}
    for rule in rules:
        parts = np.stack([np.asarray(tensors[name]) for name in rule.names(config)])
        shape = rule.shape(config)
        set_leaf(variables, rule.path, parts.reshape(shape))  # [tensors, ...] -> leaf
    return variables


def tensors_from_variables(
    rules: Rules, config: ModelConfig, variables: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """The named tensors of a variables tree, one at a time.

    Raises:
      CheckpointError: for a leaf that the tree lacks.
    """
    for rule in rules:
        leaf = np.asarray(get_leaf(variables, rule.path))
        for position in rule.positions(config):
            part = leaf[position]
            if rule.unit_axis is not None:
                part = np.expand_dims(part, rule.unit_axis)
            yield rule.tensor_name(config, *position), part
