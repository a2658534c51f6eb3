"""The exchanges that the benchmark times, each with the result it must have.

Every device holds S bytes of float32 (for all-gather and reduce-scatter: S is the whole array).
Element e of rank r is r + 1 + e mod 7, so sums of a thousand ranks are exact and every device can
say by itself what it must receive.

Bus bandwidth is S / seconds times the factor by which links are busier than the result says, as
the NCCL and RCCL tests count it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

AXIS = "group"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One collective operation inside a `shard_map` over `AXIS`."""

    name: str
    run: Callable[[Array, int], Array]  # this device's input and the size of the group
    expected: Callable[[int, Array, int], Array]  # elements sent by one, rank, size of the group
    bus_factor: Callable[[int], float]
    holds_part: bool = False  # a device's input is a part of S, not all of it


def fill(
    rank: Int[Array, ""] | Int[Array, " n"] | int, element: Int[Array, " n"]
) -> Float[Array, " n"]:
    """The elements of a rank, or each of a rank of its own."""
    return (rank + 1 + element % 7).astype(jnp.float32)


def _sum_of_all(element: Array, devices: int) -> Array:
    return (devices * (devices + 1) // 2 + devices * (element % 7)).astype(jnp.float32)


def _broadcast(x: Array, devices: int) -> Array:
    if jax.default_backend() == "cpu":  # has no broadcast of its own
        is_first = jax.lax.axis_index(AXIS) == 0
        return jax.lax.psum(jnp.where(is_first, x, 0.0), AXIS)
    return jax.lax.pbroadcast(x, AXIS, 0)


def _all_to_all(x: Array, devices: int) -> Array:
    # [n] -> [devices, n / devices] and back
    parts = x.reshape(devices, -1)
    return jax.lax.all_to_all(parts, AXIS, 0, 0).reshape(-1)


def _expected_all_to_all(count: int, rank: Array, devices: int) -> Array:
    part = count // devices
    sender, element = jnp.divmod(jnp.arange(count), part)
    return fill(sender, rank * part + element)


EXCHANGES: dict[str, Exchange] = {
    one.name: one
    for one in (
        Exchange(
            "all-reduce",
            lambda x, n: jax.lax.psum(x, AXIS),
            lambda count, rank, n: _sum_of_all(jnp.arange(count), n),
            lambda n: 2 * (n - 1) / n,
        ),
        Exchange(
            "reduce-scatter",
            lambda x, n: jax.lax.psum_scatter(x, AXIS, tiled=True),
            lambda count, rank, n: _sum_of_all(rank * (count // n) + jnp.arange(count // n), n),
            lambda n: (n - 1) / n,
        ),
        Exchange(
            "all-gather",
            lambda x, n: jax.lax.all_gather(x, AXIS, tiled=True),
            lambda count, rank, n: fill(*jnp.divmod(jnp.arange(count * n), count)),
            lambda n: (n - 1) / n,
            holds_part=True,
        ),
        Exchange(
            "broadcast", _broadcast, lambda count, rank, n: fill(0, jnp.arange(count)), lambda n: 1
        ),
        Exchange("all-to-all", _all_to_all, _expected_all_to_all, lambda n: (n - 1) / n),
        Exchange(
            "point-to-point",
            lambda x, n: jax.lax.ppermute(x, AXIS, [(i, (i + 1) % n) for i in range(n)]),
            lambda count, rank, n: fill((rank - 1) % n, jnp.arange(count)),
            lambda n: 1,
        ),
    )
}
