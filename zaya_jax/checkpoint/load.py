"""Reading a model out of a checkpoint of any layout, onto any mesh, without training's state."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jax.typing import DTypeLike

from zaya_jax.checkpoint.manager import CheckpointError, read_arrays
from zaya_jax.checkpoint.manifest import find_damage
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.checkpoint.orbax_reader import VARIABLES, OrbaxReader
from zaya_jax.checkpoint.reader import Leaf, Reader, check_finite
from zaya_jax.checkpoint.tensor_rule import LeafPath, Precision, axis_sizes, set_leaf
from zaya_jax.config import ModelConfig

# Logical axis name -> mesh axis, several mesh axes, or None for "not split".
AxisRules = Mapping[str, str | Sequence[str] | None]


def load_checkpoint(
    path: str | Path,
    mesh: Mesh | None = None,
    rules: AxisRules | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[ModelConfig, dict[str, Any]]:
    """The model saved at `path`.

    Args:
      path: a folder downloaded from the hub, a converted checkpoint, a run's folder (its newest
        finished checkpoint is taken), a folder of checkpoints, or one checkpoint.
      mesh: devices to place the arrays on; None: the first device.
      rules: which mesh axis splits which logical axis of the arrays, for example
        `{"experts": "expert", "vocab": "model"}`; the names are those of
        `checkpoint.tensor_rule.axis_sizes`. Axes without a rule are not split.
      dtype: of the matrices, for example bfloat16 to serve a large model; None: float32, which
        training wants. Router, convolutions, norms, scales and biases are always float32.

    Returns:
      The architecture, and `{"params": …, "balancing": {"biases": …}}`.

    Raises:
      CheckpointError: when there is no checkpoint, it is unfinished or damaged, or a mesh axis
        does not divide an array.
      ConfigError: when a released config.json describes no model of this family.
    """
    reader = open_checkpoint(path)
    if mesh is None and rules is not None:
        raise CheckpointError("rules say how a mesh splits the arrays; give mesh=… too")
    known = axis_sizes(reader.config)
    for axis in rules or {}:
        if axis not in known:
            raise CheckpointError(
                f"rules split the unknown axis {axis!r}; the axes are {', '.join(known)}"
            )
    shardings = {
        leaf_path: _sharding(leaf, mesh, rules or {}) for leaf_path, leaf in reader.leaves.items()
    }
    if isinstance(reader, OrbaxReader):
        return reader.config, _load_orbax(reader, shardings, dtype)
    return reader.config, _load_released(reader, shardings, dtype)


def _load_orbax(reader: OrbaxReader, shardings: dict[Any, Sharding], dtype: Any) -> dict[str, Any]:
    damage = find_damage(reader.path)
    if damage is not None:
        raise CheckpointError(f"{reader.path} is damaged: {damage}; choose another checkpoint")
    template: dict[str, Any] = {}
    for path, leaf in reader.leaves.items():
        target = _target_dtype(leaf, dtype)
        set_leaf(template, path, jax.ShapeDtypeStruct(leaf.shape, target, sharding=shardings[path]))
    return read_arrays(reader.path, VARIABLES, template)


def _load_released(reader: Reader, shardings: dict[Any, Sharding], dtype: Any) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    for path, leaf in reader.leaves.items():
        target = _target_dtype(leaf, dtype)

        part = functools.partial(_released_part, reader, path, target)
        array = jax.make_array_from_callback(leaf.shape, shardings[path], part)
        set_leaf(variables, path, array)
        reader.release()
    return variables


def _released_part(reader: Reader, path: LeafPath, dtype: np.dtype, index: Any) -> np.ndarray:
    """What one device holds of a leaf; never a view of the file."""
    shape = reader.leaves[path].shape
    full = tuple(slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True))
    block = reader.read(path, full)
    check_finite(reader, path, full, block)
    return np.array(block, dtype=dtype)


def _target_dtype(leaf: Leaf, dtype: DTypeLike | None) -> np.dtype:
    narrow = dtype is not None and leaf.rule.precision is Precision.MATRIX
    return np.dtype(jnp.dtype(dtype) if narrow else np.float32)


def _sharding(leaf: Leaf, mesh: Mesh | None, rules: AxisRules) -> Sharding:
    if mesh is None:
        return SingleDeviceSharding(jax.devices()[0])
    name = "/".join(leaf.rule.path)
    spec = []
    for axis, size in zip(leaf.rule.axes, leaf.shape, strict=True):
        split = rules.get(axis)
        mesh_axes = () if split is None else (split,) if isinstance(split, str) else tuple(split)
        unknown = [mesh_axis for mesh_axis in mesh_axes if mesh_axis not in mesh.shape]
        if unknown:
            raise CheckpointError(
                f"rules split {axis!r} over {unknown[0]!r}; the mesh has {', '.join(mesh.shape)}"
            )
        parts = int(np.prod([mesh.shape[mesh_axis] for mesh_axis in mesh_axes], dtype=int))
        if size % parts != 0:
            raise CheckpointError(
                f"{name}: axis {axis!r} has {size} entries, which the mesh's {parts} parts "
                "do not divide; split another axis"
            )
        spec.append(mesh_axes or None)
    return NamedSharding(mesh, PartitionSpec(*spec))
