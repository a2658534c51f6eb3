"""The order in which a sequence lies on the devices of the `context` axis.

Causal attention gives late tokens more keys to look at. So that every device has equally much to
do, a sequence is cut into twice as many chunks as there are devices, n, and device i holds chunks i
and 2n - 1 - i:

    n = 4      device 0: 0, 7     device 1: 1, 6     device 2: 2, 5     device 3: 3, 4

Batches arrive in the order of the sequence, device i holding chunks 2i and 2i + 1. The model brings
its tokens into the balanced order once, before the embedding, and its results back at the end; what
lies between sees tokens one by one, but for attention, see `context_parallel`.

Bytes sent per device: those of the array, at most, in two messages.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Shaped

from zaya_jax.parallel.mesh import TOKENS, current_mesh


def in_balanced_order(x: Shaped[Array, "*leading"], axis: int = 1) -> Shaped[Array, "*leading"]:
    """An array [..., batch, seq, ...] in the balanced order, `axis` being seq; dtype as given."""
    return _reordered(x, axis, back=False)


def in_sequence_order(x: Shaped[Array, "*leading"], axis: int = 1) -> Shaped[Array, "*leading"]:
    """An array in the balanced order as it was before; the inverse of `in_balanced_order`."""
    return _reordered(x, axis, back=True)


def _reordered(x: Array, axis: int, *, back: bool) -> Array:
    mesh = current_mesh()
    devices = 1 if mesh is None else mesh.shape["context"]
    if devices == 1:
        return x
    even = [(part, _holder(2 * part, devices)) for part in range(devices)]
    odd = [(part, _holder(2 * part + 1, devices)) for part in range(devices)]

    def send(chunk: Array, moves: list[tuple[int, int]]) -> Array:
        if all(here == there for here, there in moves):  # the even chunks of two devices
            return chunk
        moves = [(there, here) for here, there in moves] if back else moves
        return jax.lax.ppermute(chunk, "context", moves)

    def on_device(x: Array) -> Array:
        # Which of the two chunks of the balanced order has an even number.
        is_even_first = jax.lax.axis_index("context") % 2 == 0
        first, second = jnp.split(x, 2, axis=axis)
        if back:
            first, second = _swapped(first, second, is_even_first)
        first, second = send(first, even), send(second, odd)
        if not back:
            first, second = _swapped(first, second, is_even_first)
        return jnp.concatenate([first, second], axis=axis)

    spec = PartitionSpec(*(None,) * (axis - 1), *TOKENS)
    return jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)


def _holder(chunk: int, devices: int) -> int:
    """The device that holds a chunk in the balanced order."""
    return chunk if chunk < devices else 2 * devices - 1 - chunk


def _swapped(one: Array, other: Array, keep: Any) -> tuple[Array, Array]:
    return jnp.where(keep, one, other), jnp.where(keep, other, one)
