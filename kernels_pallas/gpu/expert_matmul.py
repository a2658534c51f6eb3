"""Grouped products over tokens sorted by expert; loads and stores do the dispatch.

Tokens are not copied into expert order: ``expert_gate_up`` gathers its rows of x as it loads them,
and ``expert_rows`` stores its rows straight to their tokens, times the router's probability. A
table cuts every expert's tokens into blocks of rows; its length is fixed by the worst case, and
programs past its end, or of the skip class, return early (the skip class's rows are written as 0).

* ``expert_gate_up``, grid [row blocks, width blocks]: h = silu(x Wg^T) * (x Wu^T), both float32.
* ``expert_down`` and ``expert_dx``, grid [row blocks, output blocks]: rows @ W, scaled, scattered.
* ``expert_dgate_up``, the first one's grid: dout @ down and the way back through SwiGLU; it also
  writes h times the probability, for the weight gradient, and each row's part of d probability.
* ``expert_dweights``, grid [out blocks * in blocks, experts]: a^T b over an expert's rows. No
  atomics; an expert without rows writes zeros.

FLOPs: 6 T H F forward, 12 T H F backward, plus half a row block an expert. Bytes: weights once a
row block, rows once a column block. Bound by the products from some hundred tokens an expert on.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.backend import Target, call, cdiv, dot, load, split_index, store, tiles


class Order(NamedTuple):
    """Tokens sorted by class, the skip class last; all int32."""

    token_at: jax.Array  # [tokens]
    start: jax.Array  # first place of each class, [experts + 1]
    load: jax.Array  # tokens of each class, [experts + 1]


class RowBlocks(NamedTuple):
    """Blocks of rows, none of them across two classes; int32 [blocks].

    ``expert`` is ``experts`` for rows of the skip class and ``experts + 1`` past the last block.
    """

    expert: jax.Array
    start: jax.Array
    stop: jax.Array


def order(class_index: jax.Array, experts: int) -> Order:
    """The stable order of the tokens by class."""
    token_at = jnp.argsort(class_index, stable=True).astype(jnp.int32)
    count = jnp.bincount(class_index, length=experts + 1).astype(jnp.int32)
    return Order(token_at, jnp.cumsum(count) - count, count)


def row_blocks(order: Order, block: int) -> RowBlocks:
    """Cut every class into blocks of at most ``block`` rows."""
    classes, tokens = order.load.size, order.token_at.size
    blocks = (order.load + block - 1) // block
    ends = jnp.cumsum(blocks)
    index = jnp.arange(cdiv(tokens, block) + classes, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, index, side="right").astype(jnp.int32)
    inside = jnp.minimum(owner, classes - 1)
    start = order.start[inside] + (index - (ends - blocks)[inside]) * block
    return RowBlocks(owner, start.astype(jnp.int32), (order.start + order.load)[inside])


def gate_up(
    x: jax.Array, order: Order, weight: jax.Array, *, keep: bool, target: Target
) -> tuple[jax.Array, ...]:
    """h [tokens, width] in sorted order; with ``keep`` also x Wg^T and x Wu^T side by side."""
    plan = tiles(target, "expert_gate_up")
    tokens, width = x.shape[0], weight.shape[1] // 2
    blocks = row_blocks(order, plan["rows"])
    outputs = [jax.ShapeDtypeStruct((tokens, width), x.dtype)]
    outputs += [jax.ShapeDtypeStruct((tokens, 2 * width), x.dtype)] if keep else []
    return call(
        functools.partial(_gate_up_kernel, **dict(plan.sizes)),
        x,
        order.token_at,
        *blocks,
        weight,
        target=target,
        tiles=plan,
        grid=(blocks.expert.size, cdiv(width, plan["columns"])),
        outputs=tuple(outputs),
        name="expert_gate_up",
    )


def _gate_up_kernel(*refs: Any, rows: int, columns: int, inner: int) -> None:
    x_ref, token_ref, expert_ref, start_ref, stop_ref, w_ref, h_ref, *kept = refs
    experts, twice, hidden = w_ref.shape
    width = twice // 2
    expert, column_block = load(expert_ref, pl.program_id(0)), pl.program_id(1)
    row, valid = _rows(start_ref, stop_ref, rows)

    @pl.when(expert < experts)
    def _() -> None:
        token = load(token_ref, row, mask=valid)
        column = column_block * columns + jax.lax.iota(jnp.int32, columns)
        inside = column < width

        def step(chunk: jax.Array, totals: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            k = (chunk * inner + jax.lax.iota(jnp.int32, inner))[None, :]
            x = load(x_ref, token[:, None], k, mask=valid[:, None] & (k < hidden))
            mask = inside[:, None] & (k < hidden)
            weights = [
                load(w_ref, expert, half * width + column[:, None], k, mask=mask) for half in (0, 1)
            ]
            return tuple(t + dot(x, w, 1, 1) for t, w in zip(totals, weights, strict=True))

        zero = jnp.zeros((rows, columns), jnp.float32)
        g, u = jax.lax.fori_loop(0, cdiv(hidden, inner), step, (zero, zero))
        mask = valid[:, None] & inside[None, :]
        h = g * jax.nn.sigmoid(g) * u
        store(h_ref, row[:, None], column[None, :], value=h, mask=mask)
        for half, value in enumerate((g, u) if kept else ()):
            index = (row[:, None], half * width + column[None, :])
            store(kept[0], *index, value=value, mask=mask)


def _rows(start_ref: Any, stop_ref: Any, rows: int) -> tuple[jax.Array, jax.Array]:
    row = load(start_ref, pl.program_id(0)) + jax.lax.iota(jnp.int32, rows)
    return row, row < load(stop_ref, pl.program_id(0))


def scattered_product(
    rows: jax.Array,
    order: Order,
    weight: jax.Array,
    gate: jax.Array | None,
    *,
    transposed: bool,
    name: str,
    target: Target,
) -> jax.Array:
    """rows[place] @ weight[expert], times the gate, in token order; 0 for the skip class.

    ``weight`` is [experts, out, in] or, ``transposed``, [experts, in, out].
    """
    plan = tiles(target, name)
    out = weight.shape[2] if transposed else weight.shape[1]
    blocks = row_blocks(order, plan["rows"])
    kernel = functools.partial(
        _scatter_kernel, transposed=transposed, gated=gate is not None, **dict(plan.sizes)
    )
    return call(
        kernel,
        rows,
        order.token_at,
        *blocks,
        weight,
        *([] if gate is None else [gate]),
        target=target,
        tiles=plan,
        grid=(blocks.expert.size, cdiv(out, plan["columns"])),
        outputs=jax.ShapeDtypeStruct((rows.shape[0], out), rows.dtype),
        name=name,
    )


def _scatter_kernel(
    *refs: Any, transposed: bool, gated: bool, rows: int, columns: int, inner: int
) -> None:
    a_ref, token_ref, expert_ref, start_ref, stop_ref, w_ref, *gate_ref, out_ref = refs
    experts, depth, out = w_ref.shape[0], a_ref.shape[1], out_ref.shape[1]
    expert, column_block = load(expert_ref, pl.program_id(0)), pl.program_id(1)
    row, valid = _rows(start_ref, stop_ref, rows)

    @pl.when(expert <= experts)
    def _() -> None:
        token = load(token_ref, row, mask=valid)
        column = column_block * columns + jax.lax.iota(jnp.int32, columns)

        def step(chunk: jax.Array, total: jax.Array) -> jax.Array:
            k = chunk * inner + jax.lax.iota(jnp.int32, inner)
            mask = valid[:, None] & (k < depth)[None, :]
            a = load(a_ref, row[:, None], k[None, :], mask=mask)
            if transposed:
                mask = (k < depth)[:, None] & (column < out)[None, :]
                return total + dot(a, load(w_ref, expert, k[:, None], column[None, :], mask=mask))
            mask = (column < out)[:, None] & (k < depth)[None, :]
            w = load(w_ref, expert, column[:, None], k[None, :], mask=mask)
            return total + dot(a, w, 1, 1)

        real = (expert < experts).astype(jnp.int32)
        chunks = real * cdiv(depth, inner)  # none for the skip class
        zero = jnp.zeros((rows, columns), jnp.float32)
        total = jax.lax.fori_loop(jnp.int32(0), chunks, step, zero)
        if gated:
            total = total * load(gate_ref[0], token, mask=valid)[:, None]
        mask = valid[:, None] & (column < out)[None, :]
        store(out_ref, token[:, None], column[None, :], value=total, mask=mask)


def swiglu_gradient(
    dout: jax.Array,
    order: Order,
    down: jax.Array,
    gate: jax.Array,
    kept: jax.Array,
    *,
    target: Target,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """In sorted order: gradient of the kept products, h times the gate, the gate's gradient."""
    plan = tiles(target, "expert_dgate_up")
    tokens, width = dout.shape[0], down.shape[2]
    blocks = row_blocks(order, plan["rows"])
    column_blocks = cdiv(width, plan["columns"])
    dkept, gated, dgate = call(
        functools.partial(_swiglu_kernel, **dict(plan.sizes)),
        dout,
        order.token_at,
        *blocks,
        down,
        gate,
        kept,
        target=target,
        tiles=plan,
        grid=(blocks.expert.size, column_blocks),
        outputs=(
            jax.ShapeDtypeStruct((tokens, 2 * width), dout.dtype),
            jax.ShapeDtypeStruct((tokens, width), dout.dtype),
            jax.ShapeDtypeStruct((tokens, column_blocks), jnp.float32),
        ),
        name="expert_dgate_up",
    )
    return dkept, gated, jnp.sum(dgate, axis=1)


def _swiglu_kernel(*refs: Any, rows: int, columns: int, inner: int) -> None:
    dout_ref, token_ref, expert_ref, start_ref, stop_ref, w_ref, gate_ref, kept_ref, *outs = refs
    experts, hidden, width = w_ref.shape
    expert, column_block = load(expert_ref, pl.program_id(0)), pl.program_id(1)
    row, valid = _rows(start_ref, stop_ref, rows)

    @pl.when(expert < experts)
    def _() -> None:
        token = load(token_ref, row, mask=valid)
        column = (column_block * columns + jax.lax.iota(jnp.int32, columns))[None, :]
        mask = valid[:, None] & (column < width)

        def step(chunk: jax.Array, total: jax.Array) -> jax.Array:
            k = chunk * inner + jax.lax.iota(jnp.int32, inner)
            inside = valid[:, None] & (k < hidden)[None, :]
            a = load(dout_ref, token[:, None], k[None, :], mask=inside)
            w = load(
                w_ref, expert, k[:, None], column, mask=(k < hidden)[:, None] & (column < width)
            )
            return total + dot(a, w)

        zero = jnp.zeros((rows, columns), jnp.float32)
        dh = jax.lax.fori_loop(0, cdiv(hidden, inner), step, zero)
        g, u = (
            load(kept_ref, row[:, None], half * width + column, mask=mask).astype(jnp.float32)
            for half in (0, 1)
        )
        gate = load(gate_ref, token, mask=valid)[:, None]
        sigmoid = jax.nn.sigmoid(g)
        silu = g * sigmoid
        dkept_ref, gated_ref, dgate_ref = outs
        store(gated_ref, row[:, None], column, value=gate * silu * u, mask=mask)
        dgate = jnp.sum(dh * silu * u, axis=1)
        store(dgate_ref, row, column_block, value=dgate, mask=valid)
        dh = dh * gate
        for half, value in ((0, dh * u * (sigmoid + silu * (1.0 - sigmoid))), (1, dh * silu)):
            store(dkept_ref, row[:, None], half * width + column, value=value, mask=mask)


def weight_gradient(
    a: jax.Array,
    b: jax.Array,
    order: Order,
    *,
    gather: str,
    dtype: Any,
    target: Target,
) -> jax.Array:
    """sum over an expert's rows of a^T b, [experts, a's channels, b's channels].

    One of the two (``gather`` = "a" or "b") is in token order, the other in sorted order.
    """
    plan = tiles(target, "expert_dweights")
    experts = order.load.size - 1
    grid = cdiv(a.shape[1], plan["out"]) * cdiv(b.shape[1], plan["columns"])
    return call(
        functools.partial(_weight_kernel, gather=gather, **dict(plan.sizes)),
        a,
        b,
        *order,
        target=target,
        tiles=plan,
        grid=(grid, experts),
        outputs=jax.ShapeDtypeStruct((experts, a.shape[1], b.shape[1]), dtype),
        name="expert_dweights",
    )


def _weight_kernel(*refs: Any, gather: str, out: int, columns: int, inner: int) -> None:
    a_ref, b_ref, token_ref, start_ref, load_ref, dw_ref = refs
    expert = pl.program_id(1)
    a_block, b_block = split_index(pl.program_id(0), cdiv(b_ref.shape[1], columns))
    a_column = (a_block * out + jax.lax.iota(jnp.int32, out))[None, :]
    b_column = (b_block * columns + jax.lax.iota(jnp.int32, columns))[None, :]
    start, count = load(start_ref, expert), load(load_ref, expert)

    def step(chunk: jax.Array, total: jax.Array) -> jax.Array:
        offset = chunk * inner + jax.lax.iota(jnp.int32, inner)
        valid = offset < count
        row = start + offset
        token = load(token_ref, row, mask=valid)
        a_row, b_row = (token, row) if gather == "a" else (row, token)
        valid = valid[:, None]
        a = load(a_ref, a_row[:, None], a_column, mask=valid & (a_column < a_ref.shape[1]))
        b = load(b_ref, b_row[:, None], b_column, mask=valid & (b_column < b_ref.shape[1]))
        return total + dot(a, b, 0, 0)

    zero = jnp.zeros((out, columns), jnp.float32)
    total = jax.lax.fori_loop(jnp.int32(0), (count + inner - 1) // inner, step, zero)
    mask = (a_ref.shape[1] > a_column.T) & (b_column < b_ref.shape[1])
    store(dw_ref, expert, a_column.T, b_column, value=total, mask=mask)
