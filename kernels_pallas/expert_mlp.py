"""Top-1 mixture-of-experts feed-forward with a skip class.

Definition, for token ``t`` of class ``e``::

    g, u   = split(x[t] @ gate_up[e].T)                    # F each, float32
    out[t] = gate[t] * ((silu(g) * u) @ down[e].T)         # 0 where e == E, the skip class

``_dense`` writes exactly that: every expert on every token, then select. It is the oracle. The
grouped forms do the work once per token and drop no token:

* ``bucketed`` (CPUs). Tokens are sorted so that the fullest expert comes first. Every expert's
  tokens, padded to the next of a few fixed row counts, go through plain matrix products; one loop
  per row count, whose dynamic trip count is the number of experts that need it. Rows read past a
  group's end belong to the next groups, which overwrite them afterwards, so nothing is masked in
  the forward pass. Loops rather than ``lax.switch``: a conditional copies the whole output.
* ``ragged_dot``. ``jax.lax.ragged_dot`` on the sorted tokens. On CPUs XLA lowers it to dense work
  over all experts.
* ``pallas`` (GPUs). The kernels of `kernels_pallas.expert_matmul`.

Shapes: x [T, H], gate_up [E, 2F, H] (gate rows first), down [E, H, F]. Every product accumulates in
float32; ``silu(g) * u`` is rounded to ``x.dtype`` before the second product.
FLOPs: 6 T H F forward, 18 T H F with gradients, plus the padding (about 8% at balanced load).
Bytes: each expert's weights are read once, E * 3 H F; with gradients they are read again and
written once. Bound by the matrix products while T / E is in the hundreds, by reading weights below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect, expert_matmul
from kernels_pallas.expert_dispatch import (
    Groups,
    group_tokens,
    group_tokens_by_load,
    overhang,
    row_buckets,
)

Dispatch = Literal["dense", "grouped"]
Implementation = Literal["auto", "pallas", "xla", "bucketed", "ragged_dot"]


def expert_mlp(
    x: Float[Array, "tokens hidden"],
    class_index: Int[Array, " tokens"],
    gate: Float[Array, " tokens"],
    gate_up: Float[Array, "experts twice_width hidden"],
    down: Float[Array, "experts hidden width"],
    *,
    dispatch: Dispatch,
    implementation: Implementation = "auto",
) -> Float[Array, "tokens hidden"]:
    """Send every token through its expert.

    Args:
      x: tokens, float32 or bfloat16.
      class_index: int32 in ``0..experts``; ``experts`` is the skip class, whose output is 0. Others
        are refused, or count as the skip class where they are traced. Skipped tokens may hold
        anything, NaN as well: no other output or gradient depends on them.
      gate: float32 factor of each token's output (the router's probability), differentiable.
      gate_up: rows ``0..width-1`` make the gate, the rest the up branch. Weights of another dtype
        than ``x`` are cast for the products; their gradients return in their own dtype.
      down: the output projection.
      dispatch: ``"dense"`` (oracle, E times the work) or ``"grouped"``; the same numbers.
      implementation: of ``"grouped"``; ``"auto"`` and ``"pallas"`` as in `kernels_pallas.backend`,
        ``"xla"`` is ``"bucketed"`` where the default backend is a CPU and ``"ragged_dot"``
        elsewhere. ``"bucketed"`` and ``"pallas"`` support reverse mode, once. ``"dense"`` has no
        kernel: ``"pallas"`` is refused with it.

    Returns:
      ``[tokens, hidden]`` in ``x.dtype``.

    Raises:
      KernelError: for arrays that do not fit together, an unknown form, and where the Pallas form
        is asked for, or due, and cannot run.
    """
    x, gate, gate_up, down = expect.floats("expert_mlp", x=x, gate=gate, gate_up=gate_up, down=down)
    (class_index,) = expect.integers("expert_mlp", class_index=class_index)
    _check(x, class_index, gate, gate_up, down)
    form = _form(x, gate_up, down, dispatch, implementation)
    experts = down.shape[0]
    real = (class_index >= 0) & (class_index < experts)
    class_index, gate = jnp.where(real, class_index, experts), jnp.where(real, gate, 0)
    if isinstance(form, backend.Target) and x.shape[0]:
        return expert_matmul.expert_matmul(form, x, class_index, gate, gate_up, down)
    grouped = _bucketed if form == "bucketed" else _ragged
    run = _dense if form == "dense" or x.shape[0] == 0 else grouped
    # Kernels do not read skipped tokens; products of whole blocks do, so there they are zeros.
    x = jnp.where(real[:, None], x, 0)
    return jnp.where(real[:, None], run(x, class_index, gate, gate_up, down), 0)


def _form(
    x: jax.Array, gate_up: jax.Array, down: jax.Array, dispatch: object, implementation: object
) -> object:
    """The target of the kernels, or the name of the form without kernels."""
    if dispatch == "dense":
        # The definition is chosen by its name, so "auto" has nothing left to choose.
        form = "xla" if implementation == "auto" else implementation
        backend.choose(form, "expert_mlp", ["dispatch='dense' has no kernel, 'grouped' has"])
        return "dense"
    if dispatch != "grouped":
        raise backend.KernelError(
            f"expert_mlp: dispatch = {dispatch!r}: must be 'dense' or 'grouped'"
        )
    refusals = expert_matmul.refusals(x, gate_up, down)
    target = backend.choose(implementation, "expert_mlp", refusals, ("bucketed", "ragged_dot"))
    if target is not None:
        return target
    if implementation in ("auto", "xla"):
        return "bucketed" if jax.default_backend() == "cpu" else "ragged_dot"
    return implementation


def _check(
    x: jax.Array, class_index: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array
) -> None:
    expect.axes(
        "expert_mlp",
        x=(x, "tokens hidden"),
        class_index=(class_index, "tokens"),
        gate=(gate, "tokens"),
        gate_up=(gate_up, "experts twice_width hidden"),
        down=(down, "experts hidden width"),
    )
    experts, hidden, width = down.shape
    tokens = x.shape[0]
    expect.shapes(
        "expert_mlp",
        x=(x, (tokens, hidden)),
        class_index=(class_index, (tokens,)),
        gate=(gate, (tokens,)),
        gate_up=(gate_up, (experts, 2 * width, hidden)),
    )
    expect.within("expert_mlp", class_index=(class_index, 0, experts))


def _product(a: jax.Array, b: jax.Array, contract_a: int, contract_b: int) -> jax.Array:
    """Matrix product over one axis of each operand, accumulated in float32."""
    axes = (((contract_a,), (contract_b,)), ((), ()))
    return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


# --- dense: the definition ---------------------------------------------------------------------


def _dense(
    x: jax.Array, class_index: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array
) -> jax.Array:
    @jax.checkpoint
    def one_expert(expert: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
        g, u = jnp.split(_product(x, gate_up.astype(x.dtype), 1, 1), 2, axis=-1)
        hidden = (jax.nn.silu(g) * u).astype(x.dtype)
        y = gate[:, None] * _product(hidden, down.astype(x.dtype), 1, 1)
        return jnp.where((class_index == expert)[:, None], y, 0.0)

    def add(total: jax.Array, expert: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        return total + one_expert(*expert), None

    experts = jnp.arange(down.shape[0], dtype=class_index.dtype)
    total, _ = lax.scan(add, jnp.zeros(x.shape, jnp.float32), (experts, gate_up, down))
    return total.astype(x.dtype)


# --- ragged_dot --------------------------------------------------------------------------------


def _ragged(
    x: jax.Array, class_index: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array
) -> jax.Array:
    num_experts = down.shape[0]
    groups = group_tokens(class_index, num_experts)

    def product(rows: jax.Array, weight: jax.Array) -> jax.Array:
        transposed = jnp.swapaxes(weight.astype(rows.dtype), 1, 2)  # [E, in, out]
        return lax.ragged_dot(rows, transposed, groups.load, preferred_element_type=jnp.float32)

    # What ragged_dot leaves in rows past the last group is undefined: select, never multiply.
    used = (jnp.arange(x.shape[0]) < groups.load.sum())[:, None]
    rows = _gather_rows(x, groups.token_at, groups.place_of)
    g, u = jnp.split(jnp.where(used, product(rows, gate_up), 0.0), 2, axis=-1)
    y = jnp.where(used, product((jax.nn.silu(g) * u).astype(x.dtype), down), 0.0)
    y = _gather_rows(y, groups.place_of, groups.token_at)
    return (gate[:, None] * y).astype(x.dtype)


@jax.custom_vjp
def _gather_rows(rows: jax.Array, index: jax.Array, inverse: jax.Array) -> jax.Array:
    """Permute rows; the gradient is the inverse permutation, a gather as well."""
    del inverse
    return rows[index]


_gather_rows.defvjp(
    lambda rows, index, inverse: (rows[index], inverse),
    lambda inverse, cotangent: (cotangent[inverse], None, None),
)


# --- bucketed ----------------------------------------------------------------------------------


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


@jax.custom_vjp
def _bucketed(
    x: jax.Array, class_index: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array
) -> jax.Array:
    return _bucketed_forward(x, class_index, gate, gate_up, down)[0]


def _bucketed_forward(
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


def _bucketed_backward(residuals: tuple, cotangent: jax.Array) -> tuple:
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


_bucketed.defvjp(_bucketed_forward, _bucketed_backward)
