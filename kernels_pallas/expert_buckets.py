"""Experts on CPUs: the tokens of each in a bucket of fixed size, through plain matrix products.

Tokens are sorted so that the fullest expert comes first. Every expert's tokens, padded to the next
of a few fixed row counts, go through plain matrix products; one loop per row count, whose dynamic
trip count is the number of experts that need it. Rows read past a group's end belong to the next
groups, which overwrite them afterwards, so nothing is masked in the forward pass. Loops rather than
``lax.switch``: a conditional copies the whole output.

The definition is `kernels_pallas.expert_mlp` with ``dispatch="dense"``. FLOPs are its
6 T H F forward and 18 T H F with gradients, plus the padding: about 8% at balanced load.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from kernels_pallas.expert_dispatch import (
    Groups,
    group_tokens_by_load,
    overhang,
    row_buckets,
)


def _take(a: jax.Array, index: jax.Array) -> jax.Array:
    return a.at[index].get(mode="promise_in_bounds")


def _rows(a: jax.Array, start: jax.Array, rows: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(a, start, rows)


def _write(buffer: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(buffer, rows.astype(buffer.dtype), start, 0)


def _for_each_expert(
    groups: Groups,
    buckets: tuple[int, ...],
    body: Callable[[int, jax.Array, tuple[jax.Array, ...]], tuple[jax.Array, ...]],
    carry: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """Run ``body(rows, position, carry)`` for every expert that has tokens, the fullest first.

    ``position`` indexes ``groups``; ``rows`` is the static bucket that holds the expert's tokens.
    """
    first = jnp.int32(0)
    for smaller, rows in zip((*buckets[-2::-1], 0), buckets[::-1], strict=True):
        last = (groups.load > smaller).sum(dtype=jnp.int32)
        carry = lax.fori_loop(first, last, functools.partial(body, rows), carry)
        first = last
    return carry


def _product(a: jax.Array, b: jax.Array, contract_a: int, contract_b: int) -> jax.Array:
    """Matrix product over one axis of each operand, accumulated in float32."""
    axes = (((contract_a,), (contract_b,)), ((), ()))
    return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


@jax.custom_vjp
def bucketed(
    x: Float[Array, "tokens hidden"],
    class_index: Int[Array, " tokens"],
    gate: Float[Array, " tokens"],
    gate_up: Float[Array, "experts twice_width hidden"],
    down: Float[Array, "experts hidden width"],
) -> Float[Array, "tokens hidden"]:
    """Gated expert outputs, in ``x.dtype``; what skipped tokens get is undefined.

    Arguments as for `kernels_pallas.expert_mlp`, found to fit together. Reverse mode, once.
    """
    return _forward(x, class_index, gate, gate_up, down)[0]


def _forward(
    x: jax.Array, class_index: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array
) -> tuple[jax.Array, tuple]:
    gate_up, down = jnp.asarray(gate_up), jnp.asarray(down)  # NumPy's come here when differentiated
    tokens, hidden = x.shape
    num_experts, _, width = down.shape
    groups = group_tokens_by_load(class_index, num_experts)
    buckets = row_buckets(tokens, num_experts)
    padded = tokens + overhang(buckets)
    token_at = jnp.pad(groups.token_at, (0, padded - tokens))

    def body(rows: int, position: jax.Array, carry: tuple[jax.Array, ...]) -> tuple:
        y_all, gu_all = carry
        start, expert = groups.start[position], groups.expert[position]
        x_rows = _take(x, _rows(token_at, start, rows))
        gu = _product(x_rows, gate_up[expert].astype(x.dtype), 1, 1)
        h = (jax.nn.silu(gu[:, :width]) * gu[:, width:]).astype(x.dtype)
        y = _product(h, down[expert].astype(x.dtype), 1, 1)
        return _write(y_all, y, start), _write(gu_all, gu, start)

    y_all = jnp.zeros((padded, hidden), jnp.float32)
    gu_all = jnp.zeros((padded, 2 * width), jnp.float32)
    y_all, gu_all = _for_each_expert(groups, buckets, body, (y_all, gu_all))
    out = (gate[:, None] * _take(y_all, groups.place_of)).astype(x.dtype)
    return out, (x, gate, gate_up, down, groups, gu_all)


def _backward(residuals: tuple, cotangent: jax.Array) -> tuple:
    x, gate, gate_up, down, groups, gu_all = residuals
    tokens = x.shape[0]
    token_at = jnp.pad(groups.token_at, (0, gu_all.shape[0] - tokens))

    def body(rows: int, position: jax.Array, carry: tuple[jax.Array, ...]) -> tuple:
        dx_all, dgate_all, dgate_up, ddown = carry
        start, expert = groups.start[position], groups.expert[position]
        token = _rows(token_at, start, rows)
        x_rows, dout = _take(x, token), _take(cotangent, token)
        # A zero gate keeps the rows past the group's end out of the weights' gradients.
        own = jnp.arange(rows) < groups.load[position]
        gate_rows = jnp.where(own, _take(gate, token), 0.0)[:, None]
        g, u = jnp.split(_rows(gu_all, start, rows), 2, axis=1)
        sigmoid = jax.nn.sigmoid(g)
        silu = g * sigmoid
        h = (silu * u).astype(x.dtype)
        dh = _product(dout, down[expert].astype(x.dtype), 1, 0)  # not yet times the gate
        dgate = (dh * h).sum(axis=1)
        dh = dh * gate_rows
        dgu = jnp.concatenate([dh * u * (sigmoid + silu * (1.0 - sigmoid)), dh * silu], axis=1)
        dgu = dgu.astype(x.dtype)
        dx = _product(dgu, gate_up[expert].astype(x.dtype), 1, 0)
        return (
            _write(dx_all, dx, start),
            _write(dgate_all, dgate, start),
            _write(dgate_up, _product(dgu, x_rows, 0, 0)[None], expert),
            _write(ddown, _product(dout, (gate_rows * h).astype(x.dtype), 0, 0)[None], expert),
        )

    padded = gu_all.shape[0]
    dx_all = jnp.zeros((padded, x.shape[1]), jnp.float32)
    carry = (dx_all, jnp.zeros(padded, jnp.float32), jnp.zeros_like(gate_up), jnp.zeros_like(down))
    buckets = row_buckets(tokens, down.shape[0])
    dx, dgate, dgate_up, ddown = _for_each_expert(groups, buckets, body, carry)
    dx = _take(dx, groups.place_of).astype(x.dtype)
    dgate = _take(dgate, groups.place_of).astype(gate.dtype)
    return dx, None, dgate, dgate_up, ddown


bucketed.defvjp(_forward, _backward)
