"""Scaled residual addition and RMSNorm in one pass over the float32 stream.

Forward: grid [row blocks]; a program owns ``rows`` whole rows, reads both branches once and writes
the stream and its norm once. Backward: grid [row groups]; a program owns ``group`` consecutive rows
and walks them ``rows`` at a time; it recomputes the stream from the branches, so nothing is saved,
and carries four float32 vectors (sums over its rows of g, g*h, g*r and of the norm's weight
gradient) that are written once and added up by XLA in a fixed order: deterministic, no atomics.

Bytes a row of C channels, bf16 activations: forward 2C + 4C read, 4C + 2C written; backward
2C + 4C + 4C + 2C read, 2C + 4C written. A few FLOPs each: bound by memory.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.backend import Target, call, cdiv, load, power_of_two, store, tiles


class Vectors(NamedTuple):
    """Per-channel parameters, [channels]."""

    hidden_bias: jax.Array
    hidden_scale: jax.Array
    residual_bias: jax.Array
    residual_scale: jax.Array
    norm_weight: jax.Array


def forward(
    hidden: jax.Array,
    residual: jax.Array,
    vectors: Vectors,
    *,
    epsilon: float,
    norm_dtype: Any,
    target: Target,
) -> tuple[jax.Array, jax.Array]:
    """The float32 stream and its norm, both [rows, channels]."""
    rows, channels = hidden.shape
    plan = tiles(target, "norm_forward")
    block = plan["rows"]

    def kernel(h_ref, r_ref, *refs):
        vector_refs, (stream_ref, norm_ref) = refs[:5], refs[5:]
        row, channel, inside = _tile(pl.program_id(0) * block, block, rows, channels)
        v = _load_vectors(vector_refs, channel, channels)
        h = load(h_ref, row, channel, mask=inside).astype(jnp.float32)
        r = load(r_ref, row, channel, mask=inside).astype(jnp.float32)
        stream = (h + v.hidden_bias) * v.hidden_scale + (r + v.residual_bias) * v.residual_scale
        inverse = _inverse_rms(jnp.where(channel < channels, stream, 0.0), channels, epsilon)
        store(stream_ref, row, channel, value=stream, mask=inside)
        store(norm_ref, row, channel, value=stream * inverse * v.norm_weight, mask=inside)

    outputs = (
        jax.ShapeDtypeStruct((rows, channels), jnp.float32),
        jax.ShapeDtypeStruct((rows, channels), norm_dtype),
    )
    grid = (cdiv(rows, block),)
    return call(
        kernel,
        hidden,
        residual,
        *vectors,
        target=target,
        tiles=plan,
        grid=grid,
        outputs=outputs,
        name="norm_forward",
    )


def backward(
    hidden: jax.Array,
    residual: jax.Array,
    vectors: Vectors,
    dstream: jax.Array,
    dnorm: jax.Array,
    *,
    epsilon: float,
    target: Target,
) -> tuple[jax.Array, jax.Array, Vectors]:
    """Gradients to both branches, in their dtypes, and to the vectors, float32."""
    rows, channels = hidden.shape
    plan = tiles(target, "norm_backward")
    groups = cdiv(rows, plan["group"])
    kernel = functools.partial(
        _backward_kernel, block=plan["rows"], group=plan["group"], epsilon=epsilon
    )
    dhidden, dresidual, sums = call(
        kernel,
        hidden,
        residual,
        dstream,
        dnorm,
        *vectors,
        target=target,
        tiles=plan,
        grid=(groups,),
        outputs=(
            jax.ShapeDtypeStruct(hidden.shape, hidden.dtype),
            jax.ShapeDtypeStruct(residual.shape, residual.dtype),
            jax.ShapeDtypeStruct((groups, 4, channels), jnp.float32),
        ),
        name="norm_backward",
    )
    g, gh, gr, dweight = jnp.sum(sums, axis=0)
    gradients = Vectors(
        hidden_bias=g * vectors.hidden_scale,
        hidden_scale=gh + g * vectors.hidden_bias,
        residual_bias=g * vectors.residual_scale,
        residual_scale=gr + g * vectors.residual_bias,
        norm_weight=dweight,
    )
    return dhidden, dresidual, gradients


def _backward_kernel(
    h_ref: Any,
    r_ref: Any,
    ds_ref: Any,
    dn_ref: Any,
    *refs: Any,
    block: int,
    group: int,
    epsilon: float,
) -> None:
    vector_refs, (dh_ref, dr_ref, sums_ref) = refs[:5], refs[5:]
    rows, channels = h_ref.shape
    first = pl.program_id(0) * group
    _, channel, _ = _tile(first, block, rows, channels)
    v = _load_vectors(vector_refs, channel, channels)

    def body(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        row, channel, inside = _tile(first + i * block, block, rows, channels)
        h, r, ds, dn = (
            load(ref, row, channel, mask=inside).astype(jnp.float32)
            for ref in (h_ref, r_ref, ds_ref, dn_ref)
        )
        x = (h + v.hidden_bias) * v.hidden_scale + (r + v.residual_bias) * v.residual_scale
        inverse = _inverse_rms(jnp.where(inside, x, 0.0), channels, epsilon)
        unit = x * inverse
        dunit = dn * v.norm_weight
        mean = jnp.sum(dunit * unit, axis=1, keepdims=True) / channels
        g = ds + (dunit - unit * mean) * inverse
        store(dh_ref, row, channel, value=g * v.hidden_scale, mask=inside)
        store(dr_ref, row, channel, value=g * v.residual_scale, mask=inside)
        parts = (jnp.where(inside, g, 0.0), g * h, g * r, dn * unit)
        return tuple(s + jnp.sum(p, axis=0) for s, p in zip(sums, parts, strict=True))

    zero = jnp.zeros((power_of_two(channels),), jnp.float32)
    sums = jax.lax.fori_loop(0, cdiv(group, block), body, (zero,) * 4)
    flat = jax.lax.iota(jnp.int32, power_of_two(channels))
    for position, total in enumerate(sums):
        store(sums_ref, pl.program_id(0), position, flat, value=total, mask=flat < channels)


def _tile(first: Any, block: int, rows: int, channels: int) -> tuple[jax.Array, ...]:
    """Row indices [block, 1], channel indices [1, padded channels] and which are inside."""
    row = (first + jax.lax.iota(jnp.int32, block))[:, None]
    channel = jax.lax.iota(jnp.int32, power_of_two(channels))[None, :]
    return row, channel, (row < rows) & (channel < channels)


def _load_vectors(refs: Any, channel: jax.Array, channels: int) -> Vectors:
    inside = channel < channels
    return Vectors(*(load(ref, channel, mask=inside).astype(jnp.float32) for ref in refs))


def _inverse_rms(x: jax.Array, channels: int, epsilon: float) -> jax.Array:
    return jax.lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) / channels + epsilon)
