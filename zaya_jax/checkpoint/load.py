"""Reading a model out of a checkpoint of any layout, onto any mesh, without training's state."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jax.typing import DTypeLike

from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.manager import read_arrays
from zaya_jax.checkpoint.manifest import find_damage
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.checkpoint.orbax_reader import VARIABLES, OrbaxReader
from zaya_jax.checkpoint.reader import Leaf, Reader, check_finite
from zaya_jax.checkpoint.tensor_rule import LeafPath, Precision, axis_sizes, get_leaf, set_leaf
from zaya_jax.config import Kernels, ModelConfig

MATRIX_DTYPES = ("float32", "bfloat16", "float16")

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
      The configuration, and `{"params": …, "balancing": {"biases": …}}`. `kernels=pallas` was said
      for the machine that trained and comes back as `auto`, which runs on this one.

    Raises:
      CheckpointError: when there is no checkpoint, it is unfinished or damaged, or a mesh axis
        does not divide an array, a `dtype` is none of `MATRIX_DTYPES`, or a number of the
        checkpoint does not fit into it.
      ConfigError: when a released config.json describes no model of this family.
    """
    matrices = _matrix_dtype(dtype)
    reader = open_checkpoint(path)
    if mesh is None and rules is not None:
        raise CheckpointError("rules say how a mesh splits the arrays; give mesh=… too")
    known = axis_sizes(reader.config)
    for axis in rules or {}:
        if axis not in known:
            raise CheckpointError(
                f"rules split the unknown axis {axis!r}; the axes are {', '.join(known)}"
            )
    split = {axis: _mesh_axes(axis, value, mesh) for axis, value in (rules or {}).items()}
    shardings = {
        leaf_path: _sharding(leaf, mesh, split) for leaf_path, leaf in reader.leaves.items()
    }
    config = reader.config
    if config.kernels is Kernels.PALLAS:
        config = config.replace(kernels=Kernels.AUTO)
    if isinstance(reader, OrbaxReader):
        return config, _load_orbax(reader, shardings, matrices)
    return config, _load_released(reader, shardings, matrices)


def _matrix_dtype(dtype: DTypeLike | None) -> np.dtype:
    try:
        wanted = jnp.dtype(np.float32 if dtype is None else dtype)
    except TypeError:
        wanted = None
    if wanted is None or wanted.name not in MATRIX_DTYPES:
        raise CheckpointError(f"dtype={dtype!r} must be one of {', '.join(MATRIX_DTYPES)}")
    return wanted


def _load_orbax(
    reader: OrbaxReader, shardings: dict[Any, Sharding], dtype: np.dtype
) -> dict[str, Any]:
    damage = find_damage(reader.path)
    if damage is not None:
        raise CheckpointError(f"{reader.path} is damaged: {damage}; choose another checkpoint")
    template: dict[str, Any] = {}
    for path, leaf in reader.leaves.items():
        target = _target_dtype(leaf, dtype)
        set_leaf(template, path, jax.ShapeDtypeStruct(leaf.shape, target, sharding=shardings[path]))
    variables = read_arrays(reader.path, VARIABLES, template)
    for path, leaf in reader.leaves.items():
        array = get_leaf(variables, path)
        if _may_overflow(leaf.dtype, array.dtype) and not bool(jnp.isfinite(array).all()):
            raise CheckpointError(
                f"{reader.place(path, ())} holds a number that {array.dtype.name} cannot hold, or "
                "none at all; choose a wider dtype"
            )
    return variables


def _may_overflow(stored: np.dtype, target: np.dtype) -> bool:
    return bool(jnp.finfo(target).max < jnp.finfo(stored).max)


def _load_released(
    reader: Reader, shardings: dict[Any, Sharding], dtype: np.dtype
) -> dict[str, Any]:
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
    with np.errstate(over="ignore"):  # said better by the check that follows
        part = np.array(block, dtype=dtype)
    if _may_overflow(block.dtype, dtype):
        check_finite(reader, path, full, part, because=f"as {dtype.name}, which is too narrow, ")
    return part


def _target_dtype(leaf: Leaf, dtype: np.dtype) -> np.dtype:
    return dtype if leaf.rule.precision is Precision.MATRIX else np.dtype(np.float32)


def _mesh_axes(axis: str, value: Any, mesh: Mesh | None) -> tuple[str, ...]:
    """The mesh axes that a rule names, which must be of the mesh."""
    names = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            f"rules split {axis!r} over {value!r}; give a mesh axis, a list of them, or None"
        )
    for name in names:
        if mesh is not None and name not in mesh.shape:
            raise CheckpointError(
                f"rules split {axis!r} over {name!r}; the mesh has {', '.join(mesh.shape)}"
            )
    return tuple(names)


def _sharding(leaf: Leaf, mesh: Mesh | None, split: Mapping[str, tuple[str, ...]]) -> Sharding:
    if mesh is None:
        return SingleDeviceSharding(jax.devices()[0])
    name = "/".join(leaf.rule.path)
    spec: list[tuple[str, ...] | None] = []
    used: dict[str, str] = {}
    for axis, size in zip(leaf.rule.axes, leaf.shape, strict=True):
        mesh_axes = split.get(axis, ())
        for mesh_axis in mesh_axes:
            if mesh_axis in used:
                raise CheckpointError(
                    f"{name}: rules split both {used[mesh_axis]!r} and {axis!r} over "
                    f"{mesh_axis!r}, but a mesh axis can split an array only once"
                )
            used[mesh_axis] = axis
        parts = math.prod(mesh.shape[mesh_axis] for mesh_axis in mesh_axes)
        if size % parts != 0:
            raise CheckpointError(
                f"{name}: axis {axis!r} has {size} entries, which the mesh's {parts} parts "
                "do not divide; split another axis"
            )
        spec.append(mesh_axes or None)
    return NamedSharding(mesh, PartitionSpec(*spec))
