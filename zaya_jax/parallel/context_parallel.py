"""Attention of sequences that are spread over devices.

Each device of the `context` axis holds a run of consecutive tokens. The convolutions and the
delayed value need a few tokens before them: the neighbour sends its last ones (a halo of
`depthwise_width + grouped_width - 2` tokens, at least the one of the value delay). Keys and values
are gathered over `context`; every device attends with its own queries. Segments may cross borders.

Over `tensor` each device mixes all heads, which is cheap, and attends with its own KV groups.

Bytes sent per device and layer: halo * (query + 3/2 kv) * itemsize point to point, and
(context - 1) * tokens * 2 * kv / tensor * itemsize gathered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from kernels_pallas.attention import causal_attention
from kernels_pallas.backend import Implementation
from kernels_pallas.cca import CCAWeights, cca_mix
from zaya_jax.parallel.mesh import TOKENS, current_mesh

_NO_SEGMENT = -1  # of what precedes the first token; equal to no segment id


def mix_and_attend(
    query_key: Float[Array, "batch seq channels"],
    value_current: Float[Array, "batch seq half_value"],
    value_delayed: Float[Array, "batch seq half_value"],
    weights: CCAWeights,
    *,
    cos: Float[Array, "batch seq half_rotary"],
    sin: Float[Array, "batch seq half_rotary"],
    segment_ids: Int[Array, "batch seq"] | None,
    window: Int[Array, ""] | None,
    implementation: Implementation,
) -> Float[Array, "batch seq query_heads head_dim"]:
    """`cca_mix`, then `causal_attention`, on the mesh in force or, without one, on one device."""
    mix = functools.partial(cca_mix, implementation=implementation)
    attend = functools.partial(causal_attention, implementation=implementation)
    mesh = current_mesh()
    if mesh is None:
        query, key, value = mix(
            query_key,
            value_current,
            value_delayed,
            weights,
            cos=cos,
            sin=sin,
            segment_ids=segment_ids,
        )
        return attend(query, key, value, segment_ids=segment_ids, window=window)
    context, tensor = mesh.shape["context"], mesh.shape["tensor"]
    if segment_ids is None and context > 1:
        segment_ids = jnp.ones(query_key.shape[:2], jnp.int32)

    def on_device(
        streams: tuple[Array, Array, Array],
        weights: CCAWeights,
        angles: tuple[Array, Array],
        segment_ids: Array | None,
        window: Array | None,
    ) -> Array:
        query, key, value = _mix_with_halo(mix, streams, weights, angles, segment_ids, context)
        query, key, value = (_own_heads(x, tensor) for x in (query, key, value))
        if context == 1:
            return attend(query, key, value, segment_ids=segment_ids, window=window)
        key, value = (jax.lax.all_gather(x, "context", axis=1, tiled=True) for x in (key, value))
        return attend(
            query,
            key,
            value,
            segment_ids=segment_ids,
            key_segment_ids=jax.lax.all_gather(segment_ids, "context", axis=1, tiled=True),
            query_offset=jax.lax.axis_index("context") * query.shape[1],
            window=window,
        )

    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(TOKENS, PartitionSpec(), TOKENS, TOKENS, PartitionSpec()),
        out_specs=PartitionSpec(*TOKENS, "tensor"),
        check_vma=False,
    )((query_key, value_current, value_delayed), weights, (cos, sin), segment_ids, window)


def _mix_with_halo(
    mix: Callable[..., tuple[Array, Array, Array]],
    streams: tuple[Array, Array, Array],
    weights: CCAWeights,
    angles: tuple[Array, Array],
    segment_ids: Array | None,
    context: int,
) -> tuple[Array, Array, Array]:
    """Mixes this device's tokens with the neighbour's last ones before them, which it drops."""
    halo = max(weights.depthwise.shape[1] + weights.grouped.shape[2] - 2, 1)
    if context == 1:
        return mix(*streams, weights, cos=angles[0], sin=angles[1], segment_ids=segment_ids)
    forward = [(part, part + 1) for part in range(context - 1)]

    def with_halo(x: Array) -> Array:
        before = jax.lax.ppermute(x[:, -halo:], "context", forward)  # zeros on the first device
        return jnp.concatenate([before, x], axis=1)

    def padded(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (halo, 0), (0, 0)))

    assert segment_ids is not None
    is_first = jax.lax.axis_index("context") == 0
    segments = with_halo(segment_ids)
    in_halo = jnp.arange(segments.shape[1])[None, :] < halo
    segments = jnp.where(is_first & in_halo, _NO_SEGMENT, segments)
    query_key, current, delayed = streams
    mixed = mix(
        with_halo(query_key),
        padded(current),
        with_halo(delayed),
        weights,
        cos=padded(angles[0]),  # RoPE of the halo is never looked at
        sin=padded(angles[1]),
        segment_ids=segments,
    )
    query, key, value = (x[:, halo:] for x in mixed)
    return query, key, value


def _own_heads(x: Array, tensor: int) -> Array:
    """This device's heads of [batch, seq, heads, head_dim]; a KV group stays together."""
    own = x.shape[2] // tensor
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("tensor") * own, own, axis=2)
