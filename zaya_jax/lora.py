"""LoRA (Hu et al., arXiv 2106.09685): a trained product of two thin matrices beside frozen ones.

    W' = W + (alpha / rank) B A        A [rank, in], B [out, rank]

Adapters are a tree of their own. Where the parameters have a targeted matrix, however deep it is
stacked over layers and experts, the adapters have a dict of `lora_a` and `lora_b`, stacked alike.
`merge_adapters` is pure: inside a loss it makes the model's parameters out of frozen ones and
adapters, and gradients reach the adapters alone. B begins at zero, so training begins at W.

Matrices are told by their path, as in `("layers", "attention", "query", "weight")`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zaya_jax.config import ConfigError

Tree = Mapping[str, Any]
Path = tuple[str, ...]

A, B = "lora_a", "lora_b"  # names of an adapter's leaves


class LoraTarget(enum.StrEnum):
    """Matrices that can be adapted."""

    ATTENTION = "attention"  # projections of queries, keys, values and the output
    EXPERTS = "experts"  # gate_up and down of every expert
    ROUTER = "router"  # down-projection and the three layers of its MLP


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Adapters instead of training everything.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    rank: int = 0  # of every adapter; 0: none, all parameters are trained
    alpha: float = 16.0  # the product counts alpha / rank
    targets: tuple[str, ...] = ("attention",)  # of: attention, experts, router

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        if self.rank < 0:
            raise ConfigError(f"lora.rank={self.rank!r}: must not be negative")
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"lora.alpha={self.alpha!r}: must be positive")
        for target in self.targets:
            if target not in tuple(LoraTarget):
                raise ConfigError(f"lora.targets: {target!r} is none of: {', '.join(LoraTarget)}")
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"lora.targets={self.targets!r}: must name each target once")

    @property
    def scale(self) -> float:
        """What the product is multiplied by."""
        return self.alpha / self.rank


def target_of(path: Path) -> LoraTarget | None:
    """What the parameter at this path of names belongs to; None where it has no adapter."""
    if path[-2:] in (("experts", "gate_up"), ("experts", "down")):
        return LoraTarget.EXPERTS
    if path[-1] != "weight" or len(path) < 3 or path[-2].endswith("norm"):
        return None
    if "attention" in path:
        return LoraTarget.ATTENTION
    return LoraTarget.ROUTER if path[-3] == "router" else None


def init_adapters(key: Array, params: Tree, config: LoraConfig) -> dict[str, Any]:
    """New adapters, float32: A uniform within 1 / sqrt(in), B zero.

    Args:
      key: random key.
      params: arrays or their abstract shapes.
      config: with a rank above 0.

    Raises:
      ConfigError: for a target that the model does not have.
    """
    found = [(path, leaf) for path, leaf in _leaves(params) if target_of(path) in config.targets]
    missing = set(config.targets) - {target_of(path) for path, _ in found}
    if missing:
        raise ConfigError(f"lora.targets: this model has no {', '.join(sorted(missing))}")
    adapters: dict[str, Any] = {}
    for number, (path, leaf) in enumerate(found):
        *stack, rows, columns = leaf.shape
        shape_a, shape_b = (*stack, config.rank, columns), (*stack, rows, config.rank)
        bound = 1 / math.sqrt(columns)
        branch = adapters
        for name in path:
            branch = branch.setdefault(name, {})
        own_key = jax.random.fold_in(key, number)
        branch[A] = jax.random.uniform(own_key, shape_a, jnp.float32, -bound, bound)
        branch[B] = jnp.zeros(shape_b, jnp.float32)
    return adapters


def merge_adapters(params: Tree, adapters: Tree, config: LoraConfig) -> dict[str, Any]:
    """The parameters that the adapters make of `params`; those without one are passed on."""
    merged: dict[str, Any] = {}
    for name, child in params.items():
        own = adapters.get(name)
        if own is None:
            merged[name] = child
        elif isinstance(child, Mapping):
            merged[name] = merge_adapters(child, own, config)
        else:
            merged[name] = child + adapter_product(own[A], own[B], config.scale).astype(child.dtype)
    return merged


def adapter_product(
    a: Float[Array, "*stack rank columns"], b: Float[Array, "*stack rows rank"], scale: float
) -> Float[Array, "*stack rows columns"]:
    """What an adapter adds to its matrix."""
    # Cheap beside the model's products, and their rounding should not depend on the device.
    return scale * jnp.matmul(b, a, precision=jax.lax.Precision.HIGHEST)


def params_checksum(params: Tree) -> Array:
    """A number that changes with any bit of float32 parameters, alike on every mesh. Jit it."""
    total = jnp.zeros((), jnp.uint32)
    for number, (_, leaf) in enumerate(_leaves(params)):
        bits = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
        # Odd factors are invertible: what changes one leaf's sum changes its share of the total.
        total += jnp.sum(bits, dtype=jnp.uint32) * jnp.uint32(2 * number + 1)
    return total


def _leaves(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Leaves with their paths, in the order of their names."""
    for name in sorted(tree):
        child = tree[name]
        if isinstance(child, Mapping):
            yield from _leaves(child, (*path, name))
        else:
            yield (*path, name), child
