"""Names of the released tensors for every leaf of the variables tree.

One rule joins one leaf (stacked over layers on its first axis) to the tensor, or the tensors of
all layers, that hold it in a released checkpoint. Reading, writing and strict checking follow from
the rules. Every tensor is copied as it lies: no transposition anywhere, only the unit axis that
the depthwise convolution has in the file.

Source: the state dict of transformers' `ZayaForCausalLM`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from zaya_jax.config import ModelConfig


class CheckpointError(ValueError):
    """A checkpoint does not hold what it should. The message names the tensor."""


@dataclasses.dataclass(frozen=True)
class TensorRule:
    """Where one leaf of the variables tree lives in a released checkpoint."""

    path: tuple[str, ...]  # in the variables tree
    name: str  # of the tensor; "{layer}" stands for the layer's number
    first_layer: int | None = None  # first layer that has the tensor; None: not part of a layer
    unit_axis: int | None = None  # axis of size one that the file's tensor has besides

    def names(self, config: ModelConfig) -> list[str]:
        """The tensors of this leaf, in the order in which the leaf stacks them."""
        if self.first_layer is None:
            return [self.name]
        layers = range(self.first_layer, config.num_layers)
        return [self.name.format(layer=layer) for layer in layers]


def transformers_layout(config: ModelConfig) -> tuple[TensorRule, ...]:
    """Rules for the layout that transformers loads. A tied head has no tensor."""
    rules = [
        TensorRule(("params", "embedding"), "model.embed_tokens.weight"),
        TensorRule(("params", "input_scale"), "model.input_hidden_states_scale"),
        TensorRule(("params", "input_bias"), "model.input_hidden_states_bias"),
        TensorRule(("params", "final_norm", "weight"), "model.norm.weight"),
        TensorRule(("balancing", "biases"), "model.layers.{layer}.mlp.gate.balancing_biases", 0),
    ]
    if config.num_layers > 1:
        name = "model.layers.{layer}.mlp.gate.router_states_scale"
        rules.append(TensorRule(("params", "router_state_scale"), name, 1))
    if not config.tie_embeddings:
        rules.append(TensorRule(("params", "head_weight"), "lm_head.weight"))
    if config.head_bias:
        rules.append(TensorRule(("params", "head_bias"), "lm_head.bias"))
    for path, name in _LAYER_TENSORS.items():
        full_path = ("params", "layers", *path.split("."))
        unit_axis = 1 if path == "attention.depthwise_conv" else None
        rules.append(TensorRule(full_path, f"model.layers.{{layer}}.{name}", 0, unit_axis))
    if config.attention_bias:
        for ours, theirs in _PROJECTIONS.items():
            bias = ("params", "layers", "attention", ours, "bias")
            rules.append(TensorRule(bias, f"model.layers.{{layer}}.self_attn.{theirs}.bias", 0))
    return tuple(rules)


_PROJECTIONS = {
    "query": "qkv_proj.q_proj",
    "key": "qkv_proj.k_proj",
    "value_current": "qkv_proj.v_proj_current",
    "value_delayed": "qkv_proj.v_proj_delayed",
    "output": "o_proj",
}

_RESIDUAL_VECTORS = (
    "hidden_states_scale",
    "hidden_states_bias",
    "residual_scale",
    "residual_bias",
)

# Path below params/layers -> name below model.layers.N
_LAYER_TENSORS: dict[str, str] = {
    "attention_norm.weight": "input_layernorm.weight",
    "expert_norm.weight": "post_attention_layernorm.weight",
    **{f"attention.{ours}.weight": f"self_attn.{hf}.weight" for ours, hf in _PROJECTIONS.items()},
    "attention.depthwise_conv": "self_attn.qkv_proj.conv_qk_depthwise.weight",
    "attention.depthwise_conv_bias": "self_attn.qkv_proj.conv_qk_depthwise.bias",
    "attention.grouped_conv": "self_attn.qkv_proj.conv_qk_grouped.weight",
    "attention.grouped_conv_bias": "self_attn.qkv_proj.conv_qk_grouped.bias",
    "attention.key_temperature": "self_attn.qk_norm.temp",
    **{f"attention_residual.{v}": f"post_attention_residual_scale.{v}" for v in _RESIDUAL_VECTORS},
    **{f"expert_residual.{v}": f"post_mlp_residual_scale.{v}" for v in _RESIDUAL_VECTORS},
    "router.down.weight": "mlp.gate.down_proj.weight",
    "router.down.bias": "mlp.gate.down_proj.bias",
    "router.norm.weight": "mlp.gate.router_mlp.norm.weight",
    "router.fc1.weight": "mlp.gate.router_mlp.fc1.weight",
    "router.fc1.bias": "mlp.gate.router_mlp.fc1.bias",
    "router.fc2.weight": "mlp.gate.router_mlp.fc2.weight",
    "router.fc2.bias": "mlp.gate.router_mlp.fc2.bias",
    "router.out.weight": "mlp.gate.router_mlp.out_proj.weight",
    "experts.gate_up": "mlp.experts.gate_up_proj",
    "experts.down": "mlp.experts.down_proj",
}


def variables_from_tensors(
    rules: tuple[TensorRule, ...], config: ModelConfig, tensors: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The variables tree held by named tensors.

    Raises:
      CheckpointError: for a tensor that is missing or that no rule names.
    """
    expected = {name for rule in rules for name in rule.names(config)}
    _refuse_difference(expected, set(tensors))
    variables: dict[str, Any] = {}
    for rule in rules:
        parts = [_without_unit_axis(rule, np.asarray(tensors[n])) for n in rule.names(config)]
        leaf = parts[0] if rule.first_layer is None else np.stack(parts)
        _set_leaf(variables, rule.path, leaf)
    return variables


def tensors_from_variables(
    rules: tuple[TensorRule, ...], config: ModelConfig, variables: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """The named tensors of a variables tree, one at a time.

    Raises:
      CheckpointError: for a leaf that the tree lacks.
    """
    for rule in rules:
        leaf = np.asarray(_get_leaf(variables, rule.path))
        names = rule.names(config)
        parts = [leaf] if rule.first_layer is None else list(leaf)
        for name, part in zip(names, parts, strict=True):
            yield name, part if rule.unit_axis is None else np.expand_dims(part, rule.unit_axis)


def _without_unit_axis(rule: TensorRule, tensor: np.ndarray) -> np.ndarray:
    return tensor if rule.unit_axis is None else np.squeeze(tensor, rule.unit_axis)


def _refuse_difference(expected: set[str], found: set[str]) -> None:
    missing, extra = sorted(expected - found), sorted(found - expected)
    if missing:
        raise CheckpointError(f"checkpoint lacks {len(missing)} tensors, first {missing[0]!r}")
    if extra:
        raise CheckpointError(f"checkpoint has {len(extra)} unknown tensors, first {extra[0]!r}")


def _set_leaf(tree: dict[str, Any], path: tuple[str, ...], leaf: np.ndarray) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = leaf


def _get_leaf(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    node: Any = tree
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            raise CheckpointError(f"variables lack {'/'.join(path)}")
        node = node[key]
    return node
