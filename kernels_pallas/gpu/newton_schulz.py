"""Products of the Newton-Schulz iteration: symmetric ones make half the tiles.

``symmetric_product``: alpha * X X^T + beta * Y for symmetric Y, grid [tile pairs, batch]. Only the
tiles on and below the diagonal are computed; each is stored at its place and, turned, at the mirror
place. ``matrix_step``: beta * X + B X, grid [row blocks * column blocks, batch]. Both accumulate in
float32, ``inner`` columns at a time on the matrix cores, and fold the sum into the store.

FLOPs of one step on [m, n], m <= n: m^2 n + m^3 + 2 m^2 n, against 4 m^2 n + 2 m^3 in full. Bound
by the products.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from kernels_pallas.backend import Target, call, cdiv, dot, load, split_index, store, tiles


def symmetric_product(
    x: jax.Array, alpha: float, beta: float, addend: jax.Array | None, *, target: Target
) -> jax.Array:
    """alpha * x x^T + beta * addend, [batch, rows, rows] in the dtype of x."""
    batch, rows, _ = x.shape
    plan = tiles(target, "symmetric_product")
    blocks = cdiv(rows, plan["rows"])
    pairs = np.asarray([(i, j) for i in range(blocks) for j in range(i + 1)], np.int32)
    kernel = functools.partial(
        _symmetric_kernel, block=plan["rows"], inner=plan["inner"], alpha=alpha, beta=beta
    )
    return call(
        kernel,
        x,
        jnp.asarray(pairs),
        *([] if addend is None else [addend]),
        target=target,
        tiles=plan,
        grid=(len(pairs), batch),
        outputs=jax.ShapeDtypeStruct((batch, rows, rows), x.dtype),
        name="symmetric_product",
    )


def _symmetric_kernel(*refs: Any, block: int, inner: int, alpha: float, beta: float) -> None:
    x_ref, pair_ref, *addend_ref, out_ref = refs
    pair, batch = pl.program_id(0), pl.program_id(1)
    rows, depth = x_ref.shape[1:]
    row = load(pair_ref, pair, 0) * block + jax.lax.iota(jnp.int32, block)
    column = load(pair_ref, pair, 1) * block + jax.lax.iota(jnp.int32, block)

    def step(chunk: jax.Array, total: jax.Array) -> jax.Array:
        k = (chunk * inner + jax.lax.iota(jnp.int32, inner))[None, :]
        a, b = (
            load(x_ref, batch, place[:, None], k, mask=(place < rows)[:, None] & (k < depth))
            for place in (row, column)
        )
        return total + dot(a, b, 1, 1)

    zero = jnp.zeros((block, block), jnp.float32)
    total = jax.lax.fori_loop(0, cdiv(depth, inner), step, zero) * alpha
    mask = (row < rows)[:, None] & (column < rows)[None, :]
    if addend_ref:
        added = load(addend_ref[0], batch, row[:, None], column[None, :], mask=mask)
        total = total + beta * added.astype(jnp.float32)
    store(out_ref, batch, row[:, None], column[None, :], value=total, mask=mask)
    # On the diagonal the mirror is the same tile: both stores write the same numbers.
    store(out_ref, batch, column[None, :], row[:, None], value=total, mask=mask)


def matrix_step(b: jax.Array, x: jax.Array, beta: float, *, target: Target) -> jax.Array:
    """beta * x + b x, [batch, rows, columns] in the dtype of x."""
    batch, rows, columns = x.shape
    plan = tiles(target, "matrix_step")
    grid = cdiv(rows, plan["rows"]) * cdiv(columns, plan["columns"])
    return call(
        functools.partial(_step_kernel, beta=beta, **dict(plan.sizes)),
        b,
        x,
        target=target,
        tiles=plan,
        grid=(grid, batch),
        outputs=jax.ShapeDtypeStruct(x.shape, x.dtype),
        name="matrix_step",
    )


def _step_kernel(
    b_ref: Any, x_ref: Any, out_ref: Any, *, rows: int, columns: int, inner: int, beta: float
) -> None:
    height, width = x_ref.shape[1:]
    block, batch = pl.program_id(0), pl.program_id(1)
    row_block, column_block = split_index(block, cdiv(width, columns))
    row = (row_block * rows + jax.lax.iota(jnp.int32, rows))[:, None]
    column = (column_block * columns + jax.lax.iota(jnp.int32, columns))[None, :]

    def step(chunk: jax.Array, total: jax.Array) -> jax.Array:
        k = chunk * inner + jax.lax.iota(jnp.int32, inner)
        inside = k < height
        b = load(b_ref, batch, row, k[None, :], mask=(row < height) & inside[None, :])
        x = load(x_ref, batch, k[:, None], column, mask=inside[:, None] & (column < width))
        return total + dot(b, x)

    zero = jnp.zeros((rows, columns), jnp.float32)
    total = jax.lax.fori_loop(0, cdiv(height, inner), step, zero)
    mask = (row < height) & (column < width)
    own = load(x_ref, batch, row, column, mask=mask).astype(jnp.float32)
    store(out_ref, batch, row, column, value=beta * own + total, mask=mask)
