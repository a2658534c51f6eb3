"""The device mesh, and which mesh axes split which axes of arrays.

Every mesh has all five axes, those of size one too, so the model's code is the same on one device
and on a thousand. Activations are split by `BATCH_AXES` and `context`; parameters and their
optimiser state by one table of logical axes, `AXIS_RULES`, whose names are those of
`checkpoint.tensor_rule.axis_sizes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec
from jaxtyping import Array

from zaya_jax.config import ConfigError, ModelConfig
from zaya_jax.parallel.settings import MESH_AXES, MeshConfig

# All of these split the rows of a batch; they differ in what else they split.
BATCH_AXES = ("data", "fsdp", "expert")
# Rows of a batch, then the tokens of a row: every array [batch, seq, …] is split so.
TOKENS = PartitionSpec(BATCH_AXES, "context")

# Logical axis of a parameter -> the mesh axis that splits it. Axes left out are whole everywhere.
AXIS_RULES: dict[str, str] = {
    "vocab": "tensor",
    "embed": "fsdp",
    "query": "tensor",
    "kv": "tensor",
    "experts": "expert",
    "gate_up": "tensor",
    "mlp": "tensor",
}


def build_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over `devices`; None: all of them.

    Raises:
      ConfigError: when the sizes do not fit the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = config.sizes(len(devices))
    return jax.make_mesh(
        tuple(sizes.values()),
        MESH_AXES,
        axis_types=(AxisType.Auto,) * len(MESH_AXES),
        devices=devices,
    )


def current_mesh() -> jax.sharding.AbstractMesh | None:
    """The mesh that `jax.set_mesh` has put in force; None outside of one."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def split_activations(x: Array) -> Array:
    """Asks for [batch, seq, …] split by rows and tokens; the same array outside of a mesh."""
    if current_mesh() is None:
        return x
    spec = PartitionSpec(*TOKENS, *(None,) * (x.ndim - 2))
    return jax.lax.with_sharding_constraint(x, spec)


def partition_spec(axes: Sequence[str], rules: dict[str, str] | None = None) -> PartitionSpec:
    """How an array with these logical axes is split.

    Raises:
      ValueError: when a rule names no mesh axis, or one mesh axis would split two axes of it.
    """
    rules = AXIS_RULES if rules is None else rules
    split = [rules.get(axis) for axis in axes]
    used = [mesh_axis for mesh_axis in split if mesh_axis is not None]
    unknown = [mesh_axis for mesh_axis in used if mesh_axis not in MESH_AXES]
    if unknown:
        raise ValueError(f"no mesh axis {unknown[0]!r}; there are {', '.join(MESH_AXES)}")
    double = [mesh_axis for mesh_axis in used if used.count(mesh_axis) > 1]
    if double:
        raise ValueError(f"mesh axis {double[0]!r} would split two axes of [{', '.join(axes)}]")
    return PartitionSpec(*split)


# What the rows of a batch and their length are called in errors.
BATCH_NAMES = ("data.batch_size", "data.sequence_length")


def check_model_fits(
    mesh: Mesh | AbstractMesh,
    model: ModelConfig,
    *,
    batch: int,
    sequence: int,
    names: tuple[str, str] = BATCH_NAMES,
) -> None:
    """Refuses a mesh whose axes do not divide what they split.

    Raises:
      ConfigError: names the axis, what it splits and the sizes.
    """
    rows = 1
    for axis in BATCH_AXES:
        rows *= mesh.shape[axis]
    tensor, context = mesh.shape["tensor"], mesh.shape["context"]
    halo = model.depthwise_conv_width + model.grouped_conv_width - 2
    # What is split, its size, into how many parts, and the mesh axes that ask for it.
    demands = (
        (names[0], batch, rows, "data * mesh.fsdp * mesh.expert"),
        (names[1], sequence, context * tensor, "context * mesh.tensor"),
        (names[1], sequence, 2 * context if context > 1 else 1, "context * 2"),
        ("model.hidden_size", model.hidden_size, mesh.shape["fsdp"], "fsdp"),
        ("model.num_experts", model.num_experts, mesh.shape["expert"], "expert"),
        ("model.num_kv_heads", model.num_kv_heads, tensor, "tensor"),
        (
            "model.expert_intermediate_size",
            model.expert_intermediate_size,
            tensor,
            "tensor",
        ),
        ("model.vocab_size", model.vocab_size, tensor, "tensor"),
    )
    for name, size, parts, axes in demands:
        if size % parts:
            raise ConfigError(f"{name}={size}: must be a multiple of mesh.{axes}, which is {parts}")
    if context > 1 and sequence // (2 * context) < max(halo, 1):
        raise ConfigError(
            f"{names[1]}={sequence}: a chunk of it on mesh.context={context}, half of a device's "
            f"part, is shorter than the {halo} tokens that the convolutions reach back"
        )
