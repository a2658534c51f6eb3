"""How many ways each axis of the device mesh splits the work."""

from __future__ import annotations

import dataclasses

from zaya_jax.config import ConfigError

# Outermost first: neighbours on the last axis are neighbours in the machine.
MESH_AXES = ("data", "fsdp", "expert", "context", "tensor")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes. Their product is the number of devices.

    Raises:
      ConfigError: on construction, when a size is neither positive nor the one -1.
    """

    data: int = -1  # copies of everything, each with its own rows of the batch; -1 = what is left
    fsdp: int = 1  # rows of the batch; parameters and optimiser state are split, gathered per layer
    expert: int = 1  # rows of the batch; each part owns some experts, tokens travel to them
    context: int = 1  # parts of each sequence; keys and values are gathered
    tensor: int = 1  # KV groups, expert width and vocabulary

    def __post_init__(self) -> None:
        for axis in MESH_AXES:
            size = getattr(self, axis)
            if not (size == -1 or size >= 1):
                raise ConfigError(f"mesh.{axis}={size!r}: must be at least 1, or -1 for the rest")
        if sum(getattr(self, axis) == -1 for axis in MESH_AXES) > 1:
            raise ConfigError("mesh: only one axis can be -1, the rest of the devices")

    def sizes(self, num_devices: int) -> dict[str, int]:
        """Every axis' size with -1 filled in.

        Raises:
          ConfigError: when the sizes do not make `num_devices`.
        """
        sizes = {axis: getattr(self, axis) for axis in MESH_AXES}
        fixed = 1
        for size in sizes.values():
            fixed *= max(size, 1)
        for axis, size in sizes.items():
            if size == -1 and num_devices % fixed == 0:
                return sizes | {axis: num_devices // fixed}
        if fixed != num_devices or -1 in sizes.values():
            asked = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
            raise ConfigError(
                f"mesh: {asked} does not fit {num_devices} devices; the sizes must multiply to "
                "their number, or divide it where one axis is -1"
            )
        return sizes
