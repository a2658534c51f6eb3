"""Where every array of a run lies on the mesh."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from zaya_jax.checkpoint.layouts import transformers_layout
from zaya_jax.config import ModelConfig
from zaya_jax.lora_settings import A, B
from zaya_jax.parallel.mesh import partition_spec


def variable_specs(config: ModelConfig) -> dict[tuple[str, ...], PartitionSpec]:
    """How each leaf of `{"params": …, "balancing": …}` is split, by its path."""
    return {rule.path: partition_spec(rule.axes) for rule in transformers_layout(config)}


def tree_shardings(tree: Any, config: ModelConfig, mesh: Mesh | AbstractMesh) -> Any:
    """A sharding for every leaf of a tree that holds parameters or things shaped like them.

    A leaf whose path ends like a parameter's is split as the parameter is (so are an optimiser's
    moments); an adapter's matrices are split in the axes they share with their parameter;
    everything else is whole on every device.
    """
    specs = {path[1:]: spec for path, spec in variable_specs(config).items()}

    def of_leaf(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = tuple(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        adapter = names[-1] if names[-1] in (A, B) else None
        if adapter is not None:
            names = names[:-1]
        matches = [suffix for suffix in _suffixes(names) if suffix in specs]
        spec = specs[matches[0]] if matches else PartitionSpec()
        if adapter is not None and len(spec) == len(leaf.shape):
            *stack, rows, columns = spec
            ends = (None, columns) if adapter == A else (rows, None)
            spec = PartitionSpec(*stack, *ends)
        return NamedSharding(mesh, spec if len(spec) == len(leaf.shape) else PartitionSpec())

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def _suffixes(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [names[start:] for start in range(len(names))]
