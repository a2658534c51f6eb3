"""The engine on several devices.

Over the mesh axis `data` the engine falls into parts: each has slots, pages and the rows of its own
sequences, and sends nothing to the others. Over `expert` every device of a part does the same work
but owns some of each layer's experts only; a token's output is that of the device that owns its
expert, and the sum over devices brings it to all of them. Everything else is whole everywhere.

Bytes summed per device and layer: tokens * hidden * itemsize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from zaya_jax.config import ConfigError, ModelConfig
from zaya_jax.inference.experts import StackedExperts
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.parallel.mesh import AXIS_RULES, build_mesh
from zaya_jax.parallel.settings import MeshConfig

WHOLE = PartitionSpec()
ROWS = PartitionSpec("data")  # arrays whose first axis is rows
LAYERS_THEN_ROWS = PartitionSpec(None, "data")  # or slots, or pages: the whole cache is so
STEPS_THEN_ROWS = LAYERS_THEN_ROWS  # what decoding returns
_EXPERTS = PartitionSpec(AXIS_RULES["experts"])


def engine_mesh(
    config: ModelConfig, settings: EngineSettings, devices: Sequence[jax.Device] | None = None
) -> Mesh | None:
    """The first of the devices as the settings split them.

    Args:
      config: architecture.
      settings: sizes.
      devices: that the engine may use; None: all of this process, and then an engine that needs
        one device only gets no mesh and stays where JAX puts things.

    Raises:
      ConfigError: when there are too few devices, or something is not divided.
    """
    data, expert = settings.mesh_data, settings.mesh_expert
    if data * expert == 1 and devices is None:
        return None
    if config.num_experts % expert:
        raise ConfigError(
            f"mesh_expert={expert} does not divide the model's {config.num_experts} experts"
        )
    devices = jax.devices() if devices is None else devices
    if len(devices) < data * expert:
        raise ConfigError(
            f"mesh_data={data} * mesh_expert={expert} needs {data * expert} devices, there are "
            f"{len(devices)}; a CPU shows more of them with JAX_NUM_CPU_DEVICES={data * expert}"
        )
    return build_mesh(MeshConfig(data=data, expert=expert), devices[: data * expert])


def weight_specs(weights: Any) -> Any:
    """How the weights are split: stacked experts over `expert`, nothing else."""

    def spec(node: Any) -> Any:
        is_split = isinstance(node, StackedExperts)
        return jax.tree.map(lambda leaf: _EXPERTS if is_split else WHOLE, node)

    return jax.tree.map(spec, weights, is_leaf=lambda node: isinstance(node, StackedExperts))


def place(tree: Any, specs: Any, mesh: Mesh | None) -> Any:
    """The arrays on the mesh; as they are without one.

    Args:
      tree: arrays.
      specs: a spec for each array, or one for all.
      mesh: where to.
    """
    if mesh is None:
        return tree
    if isinstance(specs, PartitionSpec):
        return jax.device_put(tree, NamedSharding(mesh, specs))
    return jax.device_put(tree, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))


def by_parts(
    function: Callable[..., Any], mesh: Mesh | None, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """The function run by every device on what it holds; the function itself without a mesh."""
    if mesh is None:
        return function
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def own_classes(class_index: Int[Array, " tokens"], experts: int) -> Int[Array, " tokens"]:
    """Router classes counted within this device's experts; those of others are the skip class.

    Args:
      class_index: as the router chose.
      experts: that this device owns; their number is the skip class.
    """
    own = class_index - jax.lax.axis_index("expert") * experts
    return jnp.where((own >= 0) & (own < experts), own, experts)


def sum_over_experts(output: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
    """Every token's output from the device that owns its expert; the others have zeros."""
    return jax.lax.psum(output, "expert")
