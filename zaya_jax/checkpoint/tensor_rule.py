"""How one leaf of the variables tree is spread over the tensors of a released checkpoint.

A leaf is stacked over layers on its first axis, those of the experts also over experts on their
second; in the files each layer, and in some layouts each expert, is a tensor of its own. Shapes,
reading, writing and strict checking all follow from the rules that `layouts` declares. Every tensor
is copied as it lies: no transposition anywhere, only the unit axis that the depthwise convolution
has in the files.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from zaya_jax.checkpoint.error import CheckpointError
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
