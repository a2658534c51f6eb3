"""Which devices of a process train, and which ones draw rollouts.

    devices   0 1 2 3 4 5 | 6 | 7        2 workers whose engines take one device each
              trainer     | workers

The last devices are the workers', each with its own; the first ones are the trainer's. Weights are
all that crosses: every worker's engine copies them to its devices when it takes them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax

from zaya_jax.config import ConfigError


class DeviceSplit(NamedTuple):
    """Disjoint sets of devices."""

    trainer: tuple[jax.Device, ...]
    workers: tuple[tuple[jax.Device, ...], ...]


def split_devices(
    devices: Sequence[jax.Device], workers: int, devices_of_a_worker: int
) -> DeviceSplit:
    """Gives the last devices to the workers.

    Raises:
      ConfigError: when none is left for the trainer.
    """
    taken = workers * devices_of_a_worker
    if len(devices) <= taken:
        raise ConfigError(
            f"pipeline: own_devices=True gives {taken} devices to workers={workers}, which leaves "
            f"none of {len(devices)} to the trainer; start fewer workers, or share the devices "
            "with own_devices=False (a CPU shows more devices with JAX_NUM_CPU_DEVICES)"
        )
    first = len(devices) - taken
    return DeviceSplit(
        tuple(devices[:first]),
        tuple(
            tuple(devices[start : start + devices_of_a_worker])
            for start in range(first, len(devices), devices_of_a_worker)
        ),
    )
