"""Names of the released tensors for every leaf of the variables tree, one declaration per layout.

One rule joins one leaf of the tree to the tensors of a released checkpoint that hold it. A leaf is
stacked over layers on its first axis, experts also over experts on their second; in the files each
layer, and in the `zyphra` layout each expert, is a tensor of its own. Shapes, reading, writing and
strict checking all follow from the rules. Every tensor is copied as it lies: no transposition
anywhere, only the unit axis that the depthwise convolution has in the files.

Sources: the state dict of transformers' `ZayaForCausalLM` (layout `transformers`) and the tensor
names of the first releases (layout `zyphra`: attention and expert blocks numbered as layers of
their own, a residual scale filed under the block after the one whose output it merges).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.config import ModelConfig

LeafPath = tuple[str, ...]


class Precision(enum.StrEnum):
    """What `--dtype` does to a leaf."""

    MATRIX = "matrix"  # takes the dtype asked for
    KEPT = "kept"  # router, convolutions, norms, scales, biases: never narrowed
    BALANCING = "balancing"  # float32


@dataclasses.dataclass(frozen=True)
class TensorRule:
    """Where one leaf of the variables tree lives in a released checkpoint."""

    path: LeafPath  # in the variables tree
    name: str  # of the tensors; fields in braces count layers, half-layers and experts
    axes: tuple[str, ...]  # logical names of the leaf's axes; `axis_sizes` gives their lengths
    precision: Precision
    stacked: int = 0  # leading axes of the leaf that are spread over tensors
    first_layer: int = 0  # first layer that has the tensor
    last_name: str | None = None  # of the last layer's tensor, where it is irregular
    unit_axis: int | None = None  # axis of size one that the file's tensor has besides

    def shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Shape of the leaf."""
        sizes = axis_sizes(config)
        return tuple(sizes[axis] for axis in self.axes)

    def tensor_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Shape of each of its tensors."""
        shape = list(self.shape(config)[self.stacked :])
        if self.unit_axis is not None:
            shape.insert(self.unit_axis, 1)
        return tuple(shape)

    def tensor_name(self, config: ModelConfig, *position: int) -> str:
        """The tensor at a position along the stacked axes."""
        if not self.stacked:
            return self.name
        layer = position[0] + self.first_layer
        if self.last_name is not None and layer == config.num_layers - 1:
            return self.last_name
        numbers = {"layer": layer, "attention": 2 * layer, "experts": 2 * layer + 1}
        expert = position[1] if self.stacked > 1 else 0
        return self.name.format(**numbers, next=2 * layer + 2, expert=expert)

    def positions(self, config: ModelConfig) -> Iterator[tuple[int, ...]]:
        """All positions along the stacked axes, in the order in which the leaf stacks them."""
        return itertools.product(*(range(size) for size in self.shape(config)[: self.stacked]))

    def names(self, config: ModelConfig) -> list[str]:
        """All tensors of this leaf, in that order."""
        return [self.tensor_name(config, *position) for position in self.positions(config)]

    def layer_of(self, position: tuple[int, ...]) -> int:
        """Number of the layer at a position; -1 for what belongs to none."""
        return position[0] + self.first_layer if self.stacked else -1


Rules = tuple[TensorRule, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way of naming the tensors of a released checkpoint."""

    name: str
    rules: Callable[[ModelConfig], Rules]
    marker: str  # part of a name that only this layout has
    layer_stride: int  # numbered layers in the files for one of ours
    aliases: tuple[tuple[str, str], ...]  # pattern and replacement, for names met in older files

    def canonical(self, name: str) -> str:
        """The name of today for a tensor named in any way that this layout ever had."""
        for pattern, replacement in self.aliases:
            name = re.sub(pattern, replacement, name)
        return name


def axis_sizes(config: ModelConfig) -> dict[str, int]:
    """Length of every logical axis of the variables tree."""
    return {
        "layers": config.num_layers,
        "later_layers": config.num_layers - 1,  # all but the first
        "vocab": config.vocab_size,
        "embed": config.hidden_size,
        "query": config.query_size,
        "kv": config.kv_size,
        "half_kv": config.kv_size // 2,
        "conv_channels": config.query_size + config.kv_size,
        "conv_group": config.head_dim,
        "depthwise_taps": config.depthwise_conv_width,
        "grouped_taps": config.grouped_conv_width,
        "kv_heads": config.num_kv_heads,
        "router": config.router_hidden_size,
        "router_in": config.router_hidden_size,
        "router_classes": config.num_router_classes,
        "experts": config.num_experts,
        "gate_up": 2 * config.expert_intermediate_size,
        "mlp": config.expert_intermediate_size,
    }


# Leaves of one layer below params/layers: their axes after the layer's, then their names below
# the layer in the two layouts. The zyphra name begins with the half-layer it belongs to.
_PROJECTIONS = (
    ("query", ("query", "embed"), "qkv_proj.q_proj", "qkv.linear_q"),
    ("key", ("kv", "embed"), "qkv_proj.k_proj", "qkv.linear_k"),
    ("value_current", ("half_kv", "embed"), "qkv_proj.v_proj_current", "qkv.val_proj1"),
    ("value_delayed", ("half_kv", "embed"), "qkv_proj.v_proj_delayed", "qkv.val_proj2"),
    ("output", ("embed", "query"), "o_proj", "o_proj"),
)

_KEPT_LEAVES = (
    ("attention_norm.weight", ("embed",), "input_layernorm.weight", "{attention}.input_norm.weight"),
    (
        "expert_norm.weight",
        ("embed",),
        "post_attention_layernorm.weight",
        "{experts}.input_norm.weight",
    ),
    (
        "attention.depthwise_conv",
        ("conv_channels", "depthwise_taps"),
        "self_attn.qkv_proj.conv_qk_depthwise.weight",
        "{attention}.self_attn.qkv.conv_qk.0.weight",
    ),
    (
        "attention.depthwise_conv_bias",
        ("conv_channels",),
        "self_attn.qkv_proj.conv_qk_depthwise.bias",
        "{attention}.self_attn.qkv.conv_qk.0.bias",
    ),
    (
        "attention.grouped_conv",
        ("conv_channels", "conv_group", "grouped_taps"),
        "self_attn.qkv_proj.conv_qk_grouped.weight",
        "{attention}.self_attn.qkv.conv_qk.1.weight",
    ),
    (
        "attention.grouped_conv_bias",
        ("conv_channels",),
        "self_attn.qkv_proj.conv_qk_grouped.bias",
        "{attention}.self_attn.qkv.conv_qk.1.bias",
    ),
    (
        "attention.key_temperature",
        ("kv_heads",),
        "self_attn.qk_norm.temp",
        "{attention}.self_attn.qkv.temp",
    ),
)

_ROUTER_LEAVES = (
    ("down.weight", ("router", "embed"), "down_proj.weight", "down_proj.weight"),
    ("down.bias", ("router",), "down_proj.bias", "down_proj.bias"),
    ("norm.weight", ("router",), "router_mlp.norm.weight", "rmsnorm_eda.weight"),
    ("fc1.weight", ("router", "router_in"), "router_mlp.fc1.weight", "router_mlp.0.weight"),
    ("fc1.bias", ("router",), "router_mlp.fc1.bias", "router_mlp.0.bias"),
    ("fc2.weight", ("router", "router_in"), "router_mlp.fc2.weight", "router_mlp.2.weight"),
    ("fc2.bias", ("router",), "router_mlp.fc2.bias", "router_mlp.2.bias"),
    ("out.weight", ("router_classes", "router"), "router_mlp.out_proj.weight", "router_mlp.4.weight"),
)

_EXPERTS = (
    ("gate_up", ("gate_up", "embed"), "gate_up_proj", "linear_fc1"),
    ("down", ("embed", "mlp"), "down_proj", "linear_fc2"),
)

_RESIDUAL_VECTORS = (
    "hidden_states_scale",
    "hidden_states_bias",
    "residual_scale",
    "residual_bias",
)

_LAYER = "model.layers.{layer}."
_HALF = "model.layers."  # the half-layer's number follows


def transformers_layout(config: ModelConfig) -> Rules:
    """Rules for the layout that transformers loads. A tied head has no tensor."""
    return _rules(
        config,
        globals_=("model.input_hidden_states_scale", "model.input_hidden_states_bias", "model.norm"),
        gate=_LAYER + "mlp.gate.",
        kept=lambda ours, theirs, half: _LAYER + theirs,
        projection=lambda theirs, legacy: f"{_LAYER}self_attn.{theirs}",
        router=lambda theirs, legacy: theirs,
        experts=lambda theirs, legacy: (f"{_LAYER}mlp.experts.{theirs}", 1),
        attention_residual=_LAYER + "post_attention_residual_scale.",
        expert_residual=(_LAYER + "post_mlp_residual_scale.", None),
    )


def zyphra_layout(config: ModelConfig) -> Rules:
    """Rules for the layout of the first releases. A tied head has no tensor.

    A residual scale acts on entry to a half-layer there, so the one after our layer's expert block
    belongs to the next attention half-layer, and the last one to the model.
    """
    first = _HALF + "0.res_scale.hidden_states_"
    return _rules(
        config,
        globals_=(f"{first}scale", f"{first}bias", "model.final_norm"),
        gate=_HALF + "{experts}.zaya_block.router.",
        kept=lambda ours, theirs, half: _HALF + half,
        projection=lambda theirs, legacy: f"{_HALF}{{attention}}.self_attn.{legacy}",
        router=lambda theirs, legacy: legacy,
        experts=lambda theirs, legacy: (
            f"{_HALF}{{experts}}.zaya_block.experts.local_experts.{{expert}}.{legacy}.weight",
            2,
        ),
        attention_residual=_HALF + "{experts}.res_scale.",
        expert_residual=(_HALF + "{next}.res_scale.", "model.res_scale."),
    )


def _rules(
    config: ModelConfig,
    *,
    globals_: tuple[str, str, str],
    gate: str,
    kept: Callable[[str, str, str], str],
    projection: Callable[[str, str], str],
    router: Callable[[str, str], str],
    experts: Callable[[str, str], tuple[str, int]],
    attention_residual: str,
    expert_residual: tuple[str, str | None],
) -> Rules:
    """The rules of one layout, whose ways of naming are the arguments."""
    scale, bias, norm = globals_
    matrix, keep = Precision.MATRIX, Precision.KEPT
    rules = [
        TensorRule(("params", "embedding"), "model.embed_tokens.weight", ("vocab", "embed"), matrix),
        TensorRule(("params", "input_scale"), scale, ("embed",), keep),
        TensorRule(("params", "input_bias"), bias, ("embed",), keep),
        TensorRule(("params", "final_norm", "weight"), norm + ".weight", ("embed",), keep),
    ]
    if not config.tie_embeddings:
        path = ("params", "head_weight")
        rules.append(TensorRule(path, "lm_head.weight", ("vocab", "embed"), matrix))
    if config.head_bias:
        rules.append(TensorRule(("params", "head_bias"), "lm_head.bias", ("vocab",), keep))

    def layer(path: str, axes: tuple[str, ...], name: str, **more: Any) -> None:
        full_path = ("params", "layers", *path.split("."))
        options = {"precision": keep, "stacked": 1, **more}
        rules.append(TensorRule(full_path, name, ("layers", *axes), **options))

    for ours, axes, theirs, legacy in _PROJECTIONS:
        name = projection(theirs, legacy)
        layer(f"attention.{ours}.weight", axes, f"{name}.weight", precision=matrix)
        if config.attention_bias:
            layer(f"attention.{ours}.bias", axes[:1], f"{name}.bias")
    for ours, axes, theirs, half in _KEPT_LEAVES:
        unit_axis = 1 if ours == "attention.depthwise_conv" else None
        layer(ours, axes, kept(ours, theirs, half), unit_axis=unit_axis)
    for ours, axes, theirs, legacy in _ROUTER_LEAVES:
        layer(f"router.{ours}", axes, gate + router(theirs, legacy))
    for ours, axes, theirs, legacy in _EXPERTS:
        name, stacked = experts(theirs, legacy)
        layer(f"experts.{ours}", ("experts", *axes), name, precision=matrix, stacked=stacked)
    prefix, last = expert_residual
    for vector in _RESIDUAL_VECTORS:
        layer(f"attention_residual.{vector}", ("embed",), attention_residual + vector)
        last_name = last + vector if last else None
        layer(f"expert_residual.{vector}", ("embed",), prefix + vector, last_name=last_name)
    if config.num_layers > 1:
        rules.append(
            TensorRule(
                ("params", "router_state_scale"),
                gate + "router_states_scale",
                ("later_layers", "router"),
                keep,
                stacked=1,
                first_layer=1,
            )
        )
    rules.append(
        TensorRule(
            ("balancing", "biases"),
            gate + "balancing_biases",
            ("layers", "router_classes"),
            Precision.BALANCING,
            stacked=1,
        )
    )
    return tuple(rules)


TRANSFORMERS = Layout(
    "transformers",
    transformers_layout,
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
    zyphra_layout,
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


def set_leaf(tree: dict[str, Any], path: LeafPath, leaf: Any) -> None:
    """Puts a leaf into a tree of dictionaries, which grows as needed."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = leaf


def get_leaf(tree: Mapping[str, Any], path: LeafPath) -> Any:
    """A leaf of a tree of dictionaries.

    Raises:
      CheckpointError: when the tree lacks it.
    """
    node: Any = tree
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            raise CheckpointError(f"variables lack {'/'.join(path)}")
        node = node[key]
    return node
