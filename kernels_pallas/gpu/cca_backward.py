"""Gradients of the CCA mixing step; nothing but its inputs is kept from the forward pass.

With y the heads before normalisation and u the projections:

* ``cca_dy`` (the forward pass's grid) repeats the forward pass up to y, then walks back through
  RoPE, temperature and norm; it writes dy [batch, seq, channels] in the activations' dtype.
* ``cca_du`` (the same grid): du_s = sum_d M_d^T dy_{s+d}, plus the means. M_d is what both
  convolutions do to a token d earlier, a [head_dim, head_dim] matrix for each head.
* ``cca_dweights``, grid [heads * distances, splits]: R_d = sum_t dy_t u_{t-d}^T over a split of the
  tokens, float32. Every tap's and bias's gradient is a small contraction of R and of sum_t dy_t.

No atomics: partial sums are written and added by XLA. FLOPs a token: 2 * channels * head_dim times
(grouped_width + 2 * distances); bytes: u, dy and the cotangents a few times. Bound by memory.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.backend import (
    Target,
    call,
    cdiv,
    dot,
    load,
    power_of_two,
    split_index,
    store,
    tiles,
)
from kernels_pallas.gpu.cca_block import (
    NORM_EPSILON,
    Block,
    Inputs,
    Sizes,
    operands,
    part_columns,
    read_before,
    sizes,
    square_sum,
    taps_by_distance,
)


def head_gradients(
    inputs: Inputs, dquery: jax.Array, dkey: jax.Array, *, target: Target
) -> tuple[jax.Array, jax.Array]:
    """dy [batch, seq, channels] and the temperature's gradient [kv_heads]."""
    plan = tiles(target, "cca_dy", inputs.grouped.shape[1])
    size = sizes(inputs, plan)
    batch = inputs.query_key.shape[0]
    arrays = operands(inputs)
    blocks = cdiv(size.seq, size.tokens)
    dy, dtemperature = call(
        functools.partial(_dy_kernel, names=tuple(arrays), size=size),
        *arrays.values(),
        dquery,
        dkey,
        target=target,
        tiles=plan,
        grid=(blocks, size.kv_heads, batch),
        outputs=(
            jax.ShapeDtypeStruct(inputs.query_key.shape, inputs.query_key.dtype),
            jax.ShapeDtypeStruct((batch, blocks, size.kv_heads), jnp.float32),
        ),
        name="cca_dy",
    )
    return dy, jnp.sum(dtemperature, axis=(0, 1))


def _dy_kernel(*refs: Any, names: tuple[str, ...], size: Sizes) -> None:
    ref = dict(zip(names, refs, strict=False))
    dq_ref, dk_ref, dy_ref, dtemperature_ref = refs[len(names) :]
    block = Block(ref, size)
    kv_head, batch, row = block.kv_head, block.batch, block.row[:, None]
    valid = row < size.seq

    def turned_back(cotangent_ref: Any, head: Any) -> list[jax.Array]:
        parts = []
        for first, width in size.parts:
            column = part_columns(width)
            index = (batch, row, head, first + column)
            part = load(cotangent_ref, *index, mask=valid & (column < width))
            parts.append(part.astype(jnp.float32))
        return block.rotate(parts, -1.0)

    def write(head: Any, y: list[jax.Array], dz: list[jax.Array]) -> None:
        """Back through the norm, from the gradient of its result."""
        squares = square_sum(y) + NORM_EPSILON
        scale = jax.lax.rsqrt(squares) * size.head_dim**0.5
        along = [jnp.sum(a * b, axis=1, keepdims=True) for a, b in zip(y, dz, strict=True)]
        inner = functools.reduce(jnp.add, along)
        for (first, width), a, b in zip(size.parts, y, dz, strict=True):
            column = part_columns(width)
            channel = head * size.head_dim + first + column
            dy = scale * (b - a * (inner / squares))
            store(dy_ref, batch, row, channel, value=dy, mask=valid & (column < width))

    def one_query(g: jax.Array, nothing: None) -> None:
        head = kv_head * size.group + g
        write(head, block.before_norm(head, block.query_mean(head)), turned_back(dq_ref, head))
        return nothing

    jax.lax.fori_loop(0, size.group, one_query, None)
    y = block.before_norm(block.key_head, block.key_mean())
    back = turned_back(dk_ref, kv_head)
    temperature = load(ref["temperature"], kv_head)
    write(block.key_head, y, [temperature * d for d in back])
    along = [jnp.sum(a * b, axis=1, keepdims=True) for a, b in zip(y, back, strict=True)]
    gradient = functools.reduce(jnp.add, along) * block.length(y)
    total_gradient = jnp.sum(jnp.where(valid, gradient, 0.0))
    store(dtemperature_ref, batch, pl.program_id(0), kv_head, value=total_gradient)


def input_gradients(inputs: Inputs, dy: jax.Array, *, target: Target) -> jax.Array:
    """du [batch, seq, channels] in the projections' dtype."""
    plan = tiles(target, "cca_du", inputs.grouped.shape[1])
    size = sizes(inputs, plan)
    channels, head_dim, _ = inputs.grouped.shape
    matrices = combined_taps(inputs).reshape(size.reach + 1, channels, head_dim)
    batch = dy.shape[0]
    return call(
        functools.partial(_du_kernel, size=size),
        dy,
        matrices.astype(dy.dtype),
        inputs.start,
        target=target,
        tiles=plan,
        grid=(cdiv(size.seq, size.tokens), size.kv_heads, batch),
        outputs=jax.ShapeDtypeStruct(dy.shape, dy.dtype),
        name="cca_du",
    )


def combined_taps(inputs: Inputs) -> jax.Array:
    """M_d[o, c] = sum_{i + j = d} grouped_j[o, c] * depthwise_i[c], float32 [d, heads, o, c]."""
    channels, head_dim, _ = inputs.grouped.shape
    heads = channels // head_dim
    grouped = taps_by_distance(inputs.grouped.astype(jnp.float32))
    grouped = grouped.reshape(-1, heads, head_dim, head_dim)
    depthwise = inputs.depthwise[:, ::-1].T.reshape(-1, heads, 1, head_dim)
    distances = len(grouped) + len(depthwise) - 1
    combined = [jnp.zeros(grouped.shape[1:])] * distances
    for j, taps in enumerate(grouped):
        for i, factor in enumerate(depthwise):
            combined[i + j] = combined[i + j] + taps * factor
    return jnp.stack(combined)


def _du_kernel(dy_ref: Any, taps_ref: Any, start_ref: Any, du_ref: Any, *, size: Sizes) -> None:
    block, kv_head, batch = (pl.program_id(axis) for axis in range(3))
    row = block * size.tokens + jax.lax.iota(jnp.int32, size.tokens)
    column = jax.lax.iota(jnp.int32, power_of_two(size.head_dim, 16))[None, :]
    inside = (row < size.seq)[:, None] & (column < size.head_dim)
    key_head = size.kv_heads * size.group + kv_head

    def own(head: Any) -> jax.Array:
        channel = head * size.head_dim + column
        return load(dy_ref, batch, row[:, None], channel, mask=inside).astype(jnp.float32)

    def convolved(head: Any, total: jax.Array) -> jax.Array:
        def step(chunk: jax.Array, total: jax.Array) -> jax.Array:
            out = chunk * size.inner + jax.lax.iota(jnp.int32, size.inner)[None, :]
            for d in range(size.reach + 1):
                later = row + d
                exists = later < size.seq
                start = load(start_ref, batch, later, mask=exists)
                seen = (exists & (start <= row))[:, None] & (out < size.head_dim)
                channel = head * size.head_dim + out
                dy = load(dy_ref, batch, later[:, None], channel, mask=seen)
                square = (size.head_dim > out.T) & (column < size.head_dim)
                total = total + dot(dy, load(taps_ref, d, channel.T, column, mask=square))
            return total

        return jax.lax.fori_loop(0, cdiv(size.head_dim, size.inner), step, total)

    def write(head: Any, total: jax.Array) -> None:
        channel = head * size.head_dim + column
        store(du_ref, batch, row[:, None], channel, value=total, mask=inside)

    def one_query(g: jax.Array, total: jax.Array) -> jax.Array:
        head = kv_head * size.group + g
        mine = own(head)
        write(head, convolved(head, 0.5 * (mine + own(key_head) / size.group)))
        return total + mine

    total = jax.lax.fori_loop(0, size.group, one_query, jnp.zeros(inside.shape, jnp.float32))
    write(key_head, convolved(key_head, 0.5 * (total + own(key_head))))


def correlations(inputs: Inputs, dy: jax.Array, *, target: Target) -> jax.Array:
    """R_d[o, c] = sum_t dy_t[o] u_{t-d}[c], float32 [distances, heads, head_dim, head_dim]."""
    plan = tiles(target, "cca_dweights", inputs.grouped.shape[1])
    size = sizes(inputs, plan)
    heads = size.kv_heads * (size.group + 1)
    arrays = {"query_key": inputs.query_key, "start": inputs.start, "dy": dy}
    arrays |= {} if inputs.state is None else {"state": inputs.state}
    blocks = dy.shape[0] * cdiv(size.seq, size.tokens)
    splits = min(plan["splits"], blocks)
    distances = size.reach + 1
    shape = (splits, distances, heads, size.head_dim, size.head_dim)
    kernel = functools.partial(
        _correlation_kernel, names=tuple(arrays), size=size, blocks=blocks, heads=heads
    )
    partial_sums = call(
        kernel,
        *arrays.values(),
        target=target,
        tiles=plan,
        grid=(heads * distances, splits),
        outputs=jax.ShapeDtypeStruct(shape, jnp.float32),
        name="cca_dweights",
    )
    return jnp.sum(partial_sums, axis=0)


def _correlation_kernel(
    *refs: Any, names: tuple[str, ...], size: Sizes, blocks: int, heads: int
) -> None:
    ref = dict(zip(names, refs, strict=False))
    out_ref = refs[len(names)]
    distance, head = split_index(pl.program_id(0), heads)
    split = pl.program_id(1)
    blocks_per_row = cdiv(size.seq, size.tokens)
    column = jax.lax.iota(jnp.int32, power_of_two(size.head_dim, 16))[None, :]
    inside, channel = column < size.head_dim, head * size.head_dim + column
    per_split = cdiv(blocks, out_ref.shape[0])

    def step(position: jax.Array, total: jax.Array) -> jax.Array:
        batch, block = split_index(position, blocks_per_row)
        row = block * size.tokens + jax.lax.iota(jnp.int32, size.tokens)
        valid = row < size.seq
        start = load(ref["start"], batch, row, mask=valid)
        dy = load(ref["dy"], batch, row[:, None], channel, mask=valid[:, None] & inside)
        u = read_before(ref, batch, row, start, distance, channel, inside, size)
        return total + dot(dy, u.astype(dy.dtype), 0, 0)

    first = split * per_split
    last = jnp.minimum(first + per_split, blocks)
    zero = jnp.zeros((column.shape[1],) * 2, jnp.float32)
    total = jax.lax.fori_loop(first, last, step, zero)
    store(out_ref, split, distance, head, column.T, column, value=total, mask=inside.T & inside)
