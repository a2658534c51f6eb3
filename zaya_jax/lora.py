"""LoRA (Hu et al., arXiv 2106.09685): a trained product of two thin matrices beside frozen ones.

    W' = W + (alpha / rank) B A        A [rank, in], B [out, rank]

Adapters are a tree of their own. Where the parameters have a targeted matrix, however deep it is
stacked over layers and experts, the adapters have a dict of `lora_a` and `lora_b`, stacked alike.
`merge_adapters` is pure: inside a loss it makes the model's parameters out of frozen ones and
adapters, and gradients reach the adapters alone. B begins at zero, so training begins at W.

Matrices are told by their path, as in `("layers", "attention", "query", "weight")`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zaya_jax.config import ConfigError
from zaya_jax.lora_settings import A, B, LoraConfig, Path, target_of

Tree = Mapping[str, Any]


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
