"""Times a fixed product on every device of this process, by which a slow one is told.

Steps do not tell: in each, all processes wait for the slowest. See `zaya_jax.systems.watch`.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

_SIZE = {"cpu": 256}  # rows of a square matrix; others: 4,096
_PRODUCTS = 8


class Probe:
    """A product that is compiled once and timed when asked."""

    def __init__(self) -> None:
        devices = jax.local_devices()
        size = _SIZE.get(devices[0].platform, 4_096)
        self._blocks = [jax.device_put(jnp.ones((size, size), jnp.bfloat16), d) for d in devices]
        self._product = jax.jit(
            lambda x: jax.lax.fori_loop(0, _PRODUCTS, lambda _, y: y @ x / size, x)
        )
        self.seconds()  # compiles

    def seconds(self) -> float:
        """Of the slowest device; waits for what the devices are doing first."""
        jax.block_until_ready([block + 0 for block in self._blocks])
        slowest = 0.0
        for block in self._blocks:
            start = time.perf_counter()
            self._product(block).block_until_ready()
            slowest = max(slowest, time.perf_counter() - start)
        return slowest
