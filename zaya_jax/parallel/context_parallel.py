"""Attention of sequences that are spread over devices.

Each device of the `context` axis holds two chunks of every sequence, an early and a late one, so
that all have equally many keys to look at (`context_order`). The convolutions and the delayed value
need a few tokens before a chunk: whoever holds the chunk before sends its last ones (a halo of
`depthwise_width + grouped_width - 2` tokens, at least the one of the value delay). Keys and values
are gathered over `context`; every device attends with its own queries. Segments may cross borders.

Over `tensor` each device mixes all heads, which is cheap, and attends with its own KV groups.

Bytes sent per device and layer: 2 * halo * (query + 3/2 kv) * itemsize point to point, and
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
    """`cca_mix`, then `causal_attention`, on the mesh in force or, without one, on one device.

    Where the mesh splits sequences, all arrays are in the balanced order.
    """
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
        attend_here = functools.partial(attend, window=window)
        if context > 1:
            assert segment_ids is not None
            mixed = _mix_chunks(mix, streams, weights, angles, segment_ids, context)
            query, key, value = (_own_heads(x, tensor) for x in mixed)
            return _attend_from_chunks(attend_here, query, key, value, segment_ids, context)
        cos, sin = angles
        mixed = mix(*streams, weights, cos=cos, sin=sin, segment_ids=segment_ids)
        return attend_here(*(_own_heads(x, tensor) for x in mixed), segment_ids=segment_ids)

    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(TOKENS, PartitionSpec(), TOKENS, TOKENS, PartitionSpec()),
        out_specs=PartitionSpec(*TOKENS, "tensor"),
        check_vma=False,
    )((query_key, value_current, value_delayed), weights, (cos, sin), segment_ids, window)


def _mix_chunks(
    mix: Callable[..., tuple[Array, Array, Array]],
    streams: tuple[Array, Array, Array],
    weights: CCAWeights,
    angles: tuple[Array, Array],
    segment_ids: Array,
    context: int,
) -> tuple[Array, Array, Array]:
    """Mixes this device's two chunks, each with the last tokens before it, which it drops."""
    halo = max(weights.depthwise.shape[1] + weights.grouped.shape[2] - 2, 1)
    upward = [(part, part + 1) for part in range(context - 1)]
    downward = [(part + 1, part) for part in range(context - 1)]
    is_last = jax.lax.axis_index("context") == context - 1

    def with_halo(x: Array) -> Array:
        """[batch, 2 * chunk, ...] -> [2 * batch, halo + chunk, ...], early chunks first."""
        early, late = jnp.split(x, 2, axis=1)
        before_early = jax.lax.ppermute(early[:, -halo:], "context", upward)  # zeros on the first
        before_late = jax.lax.ppermute(late[:, -halo:], "context", downward)
        before_late = jnp.where(is_last, early[:, -halo:], before_late)  # the middle: its own
        parts = ((before_early, early), (before_late, late))
        return jnp.concatenate([jnp.concatenate(part, axis=1) for part in parts], axis=0)

    def padded(x: Array) -> Array:
        chunks = jnp.concatenate(jnp.split(x, 2, axis=1), axis=0)
        return jnp.pad(chunks, ((0, 0), (halo, 0), (0, 0)))

    query_key, current, delayed = streams
    mixed = mix(
        with_halo(query_key),
        padded(current),
        with_halo(delayed),
        weights,
        cos=padded(angles[0]),  # RoPE of the halo is never looked at
        sin=padded(angles[1]),
        # The zeros before the first token become no segment.
        segment_ids=with_halo(segment_ids - _NO_SEGMENT) + _NO_SEGMENT,
    )
    query, key, value = (jnp.concatenate(jnp.split(x[:, halo:], 2, axis=0), axis=1) for x in mixed)
    return query, key, value


def _attend_from_chunks(
    attend: Callable[..., Array],
    query: Array,
    key: Array,
    value: Array,
    segment_ids: Array,
    context: int,
) -> Array:
    """Attention of this device's early and late chunk, [batch, 2 * chunk, heads, head_dim]."""
    part, chunk = jax.lax.axis_index("context"), query.shape[1] // 2

    def whole(x: Array) -> Array:
        """All chunks of the sequence in its order."""
        x = jax.lax.all_gather(x, "context", axis=1, tiled=True)
        # [batch, seq, ...] -> [batch, context, early and late, chunk, ...]
        x = x.reshape(x.shape[0], context, 2, chunk, *x.shape[2:])
        ordered = jnp.concatenate([x[:, :, 0], x[:, ::-1, 1]], axis=1)
        return ordered.reshape(x.shape[0], 2 * context * chunk, *x.shape[4:])

    key, value, key_segments = whole(key), whole(value), whole(segment_ids)
    seen = context * chunk  # no early chunk looks further
    early = attend(
        query[:, :chunk],
        key[:, :seen],
        value[:, :seen],
        segment_ids=segment_ids[:, :chunk],
        key_segment_ids=key_segments[:, :seen],
        query_offset=part * chunk,
    )
    late = attend(
        query[:, chunk:],
        key,
        value,
        segment_ids=segment_ids[:, chunk:],
        key_segment_ids=key_segments,
        query_offset=(2 * context - 1 - part) * chunk,
    )
    return jnp.concatenate([early, late], axis=1)


def _own_heads(x: Array, tensor: int) -> Array:
    """This device's heads of [batch, seq, heads, head_dim]; a KV group stays together."""
    own = x.shape[2] // tensor
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("tensor") * own, own, axis=2)
