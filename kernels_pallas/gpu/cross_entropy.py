"""What a loss needs of the LM head's logits, without the logits.

``head_statistics`` walks the vocabulary in tiles: grid [token blocks, vocabulary splits]; a program
owns ``tokens`` tokens and every tile of one split, multiplies hidden [tokens, H] with the tile's
rows of the weight ``inner`` channels at a time on the matrix cores, and carries the running
maximum and sum of exponentials, the target's logit and the best other logit, all float32. XLA
combines the splits: [splits, tokens] numbers.

``head_dlogits`` makes the gradient of one chunk of the vocabulary (``chunk`` rows; 4,096 are 1.6%
of 262,272), in the activations' dtype: p * a + onehot * b, with p recomputed from the log-sum.
Plain matrix products turn it into the gradients; chunk follows chunk, so there is never more.

FLOPs: 2 T H V forward, 6 T H V backward (one product repeated). Bytes: the weight once per token
block, from the cache within a split. Bound by the products.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.backend import Target, Tiles, call, cdiv, dot, load, store, tiles

LEAST = -1e30  # a running maximum to begin with: finite, or the first difference would be NaN


class Statistics(NamedTuple):
    """Of every token's logits, float32 [tokens].

    ``target`` is NaN for a target outside the vocabulary.
    """

    log_sum: jax.Array
    target: jax.Array
    best_other: jax.Array


def statistics(
    hidden: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    *,
    target: Target,
) -> Statistics:
    """Log-sum, target logit and best other logit."""
    plan = tiles(target, "head_statistics")
    tokens, vocab = hidden.shape[0], weight.shape[0]
    blocks = cdiv(vocab, plan["columns"])
    splits = min(plan["splits"], blocks)
    shape = jax.ShapeDtypeStruct((splits, tokens), jnp.float32)
    kernel = functools.partial(
        _statistics_kernel,
        rows=plan["tokens"],
        columns=plan["columns"],
        inner=plan["inner"],
        per_split=cdiv(blocks, splits),
    )
    top, total, own, other = call(
        kernel,
        hidden,
        weight,
        targets,
        *([] if bias is None else [bias]),
        target=target,
        tiles=plan,
        grid=(cdiv(tokens, plan["tokens"]), splits),
        outputs=(shape,) * 4,
        name="head_statistics",
    )
    highest = jnp.max(top, axis=0)
    log_sum = highest + jnp.log(jnp.sum(total * jnp.exp(top - highest[None]), axis=0))
    inside = (targets >= 0) & (targets < vocab)
    own = jnp.where(inside, jnp.max(own, axis=0), jnp.nan)
    return Statistics(log_sum, own, jnp.max(other, axis=0))


def _statistics_kernel(*refs: Any, rows: int, columns: int, inner: int, per_split: int) -> None:
    hidden_ref, weight_ref, targets_ref, *bias_ref, top_ref, total_ref, own_ref, other_ref = refs
    tokens, vocab = hidden_ref.shape[0], weight_ref.shape[0]
    split = pl.program_id(1)
    row = pl.program_id(0) * rows + jax.lax.iota(jnp.int32, rows)
    wanted = load(targets_ref, row, mask=row < tokens)[:, None]

    def step(block: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, own, other = carry
        column = block * columns + jax.lax.iota(jnp.int32, columns)
        logits = _logits(hidden_ref, weight_ref, bias_ref, row, column, inner)
        logits = jnp.where(column[None, :] < vocab, logits, -jnp.inf)
        is_target = column[None, :] == wanted
        new_top = jnp.maximum(top, jnp.max(logits, axis=1))
        exponentials = jnp.exp2((logits - new_top[:, None]) * LOG2_E)
        total = total * jnp.exp2((top - new_top) * LOG2_E) + jnp.sum(exponentials, axis=1)
        own = jnp.maximum(own, jnp.max(jnp.where(is_target, logits, -jnp.inf), axis=1))
        other = jnp.maximum(other, jnp.max(jnp.where(is_target, -jnp.inf, logits), axis=1))
        return new_top, total, own, other

    least = jnp.full((rows,), LEAST, jnp.float32)
    first = split * per_split
    last = jnp.minimum(first + per_split, cdiv(vocab, columns))
    nothing = jnp.full((rows,), -jnp.inf, jnp.float32)
    carry = (least, jnp.zeros((rows,), jnp.float32), nothing, nothing)
    results = jax.lax.fori_loop(first, last, step, carry)
    for ref, value in zip((top_ref, total_ref, own_ref, other_ref), results, strict=True):
        store(ref, split, row, value=value, mask=row < tokens)


LOG2_E = 1.4426950408889634


def _logits(
    hidden_ref: Any,
    weight_ref: Any,
    bias_ref: list[Any],
    row: jax.Array,
    column: jax.Array,
    inner: int,
) -> jax.Array:
    """Float32 logits [rows, columns] of a tile; columns past the vocabulary are 0 or the bias."""
    tokens, channels = hidden_ref.shape
    rows_inside = (row < tokens)[:, None]
    columns_inside = (column < weight_ref.shape[0])[:, None]

    def step(chunk: jax.Array, total: jax.Array) -> jax.Array:
        k = (chunk * inner + jax.lax.iota(jnp.int32, inner))[None, :]
        h = load(hidden_ref, row[:, None], k, mask=rows_inside & (k < channels))
        w = load(weight_ref, column[:, None], k, mask=columns_inside & (k < channels))
        return total + dot(h, w, 1, 1)

    zero = jnp.zeros((row.shape[0], column.shape[0]), jnp.float32)
    total = jax.lax.fori_loop(0, cdiv(channels, inner), step, zero)
    if bias_ref:
        bias = load(bias_ref[0], column, mask=column < weight_ref.shape[0])
        total = total + bias.astype(jnp.float32)[None, :]
    return total


def gradients(
    hidden: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    log_sum: jax.Array,
    cotangents: Statistics,
    *,
    target: Target,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Float32 gradients to hidden, weight and bias (made even where there is no bias)."""
    plan = tiles(target, "head_dlogits")
    vocab = weight.shape[0]
    chunk = min(plan["chunk"], vocab)
    whole = vocab // chunk
    operands = (hidden, targets, log_sum, cotangents.log_sum, cotangents.target)
    one = functools.partial(_chunk_gradient, operands, weight, bias, plan, target)

    def step(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return one(i * chunk, chunk, carry)

    carry = tuple(jnp.zeros(shape, jnp.float32) for shape in (hidden.shape, weight.shape, (vocab,)))
    carry = jax.lax.fori_loop(0, whole, step, carry)
    if whole * chunk < vocab:
        carry = one(jnp.int32(whole * chunk), vocab - whole * chunk, carry)
    dhidden, dweight, dbias = carry
    return dhidden, dweight, dbias


def _chunk_gradient(
    operands: tuple[jax.Array, ...],
    weight: jax.Array,
    bias: jax.Array | None,
    plan: Tiles,
    target: Target,
    start: jax.Array,
    size: int,
    carry: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """Add a chunk's part to the gradients."""
    dhidden, dweight, dbias = carry
    hidden = operands[0]
    rows = jax.lax.dynamic_slice_in_dim(weight, start, size)
    bias_rows = [] if bias is None else [jax.lax.dynamic_slice_in_dim(bias, start, size)]
    kernel = functools.partial(
        _dlogits_kernel, rows=plan["tokens"], columns=plan["columns"], inner=plan["inner"]
    )
    dlogits = call(
        kernel,
        *operands,
        start.reshape(1),
        rows,
        *bias_rows,
        target=target,
        tiles=plan,
        grid=(cdiv(hidden.shape[0], plan["tokens"]), cdiv(size, plan["columns"])),
        outputs=jax.ShapeDtypeStruct((hidden.shape[0], size), hidden.dtype),
        name="head_dlogits",
    )

    def product(a: jax.Array, b: jax.Array, contract_a: int) -> jax.Array:
        axes = (((contract_a,), (0,)), ((), ()))
        return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)

    update = jax.lax.dynamic_update_slice_in_dim
    dweight = update(dweight, product(dlogits, hidden, 0), start, 0)
    dbias = update(dbias, jnp.sum(dlogits.astype(jnp.float32), axis=0), start, 0)
    return dhidden + product(dlogits, rows, 1), dweight, dbias


def _dlogits_kernel(*refs: Any, rows: int, columns: int, inner: int) -> None:
    hidden_ref, targets_ref, log_sum_ref, scale_ref, own_ref, start_ref, weight_ref, *bias, out = (
        refs
    )
    tokens, size = out.shape
    row = pl.program_id(0) * rows + jax.lax.iota(jnp.int32, rows)
    column = pl.program_id(1) * columns + jax.lax.iota(jnp.int32, columns)
    wanted, log_sum, scale, own = (
        load(ref, row, mask=row < tokens)[:, None]
        for ref in (targets_ref, log_sum_ref, scale_ref, own_ref)
    )
    logits = _logits(hidden_ref, weight_ref, bias, row, column, inner)
    gradient = jnp.exp2((logits - log_sum) * LOG2_E) * scale
    is_target = (column + load(start_ref, 0))[None, :] == wanted
    gradient = gradient + jnp.where(is_target, own, 0.0)
    mask = (row < tokens)[:, None] & (column < size)[None, :]
    store(out, row[:, None], column[None, :], value=gradient, mask=mask)
