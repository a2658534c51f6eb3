"""State that lies in the host's memory while a device does not need it.

An optimiser's moments are as large as the parameters or twice that, and only the update reads them.
With `optimizer.offload_state` they wait in page-locked memory of the host; the step, one program,
fetches them and sends the new ones back. On a mesh every host keeps its own devices' parts.
"""

from __future__ import annotations

from typing import Any

import jax

from zaya_jax.config import ConfigError

HOST_MEMORY = "pinned_host"  # JAX's name for page-locked memory of a device's host


def check_host_memory(setting: str, mend: str, device: jax.Device) -> None:
    """Refuses a setting that needs host memory where the backend has none.

    Raises:
      ConfigError: names the setting with its value, and the mend.
    """
    kinds = [memory.kind for memory in device.addressable_memories()]
    # Devices that are only compiled for name no memories at all.
    if kinds and HOST_MEMORY not in kinds:
        raise ConfigError(
            f"{setting} keeps arrays in {HOST_MEMORY} memory, which devices of the "
            f"{device.platform} backend do not have (they have {', '.join(kinds)}); {mend}"
        )


def is_moment(path: tuple[Any, ...], leaf: Any) -> bool:
    """Whether a leaf of a state is the optimiser's and larger than a counter."""
    return bool(leaf.shape) and any(getattr(k, "name", None) == "optimizer_state" for k in path)


def moments_on_host(shardings: Any, state: Any) -> Any:
    """The shardings of a state's leaves, those of its moments in host memory."""

    def of_leaf(path: tuple[Any, ...], leaf: Any, sharding: jax.sharding.Sharding) -> Any:
        return sharding.with_memory_kind(HOST_MEMORY) if is_moment(path, leaf) else sharding

    return jax.tree_util.tree_map_with_path(of_leaf, state, shardings)


def fetch_moments(state: Any) -> Any:
    """Inside of a jitted function: the state with its moments on the device."""
    return _moved(state, jax.memory.Space.Device)


def send_moments(state: Any) -> Any:
    """Inside of a jitted function: the state with its moments in host memory."""
    return _moved(state, jax.memory.Space.Host)


def _moved(state: Any, space: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.device_put(leaf, space) if is_moment(path, leaf) else leaf, state
    )
