"""Top-1 experts by grouped Pallas kernels: dispatch, SwiGLU, router probability and combine fused.

The definition is `kernels_pallas.expert_mlp` with ``dispatch="dense"``, which is also the XLA form.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas.backend import Target
from kernels_pallas.gpu import expert_matmul as gpu


def refusals(x: Array, gate_up: Array, down: Array) -> list[str | None]:
    """Why the kernels cannot take these arrays; None entries are no reasons."""
    if x.dtype in (jnp.float32, jnp.bfloat16):
        return []
    return [
        f"x has dtype {x.dtype}, not float32 or bfloat16 (experts {gate_up.shape}, {down.shape})"
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def expert_matmul(
    target: Target,
    x: Float[Array, "tokens hidden"],
    class_index: Int[Array, " tokens"],
    gate: Float[Array, " tokens"],
    gate_up: Float[Array, "experts twice_width hidden"],
    down: Float[Array, "experts hidden width"],
) -> Float[Array, "tokens hidden"]:
    """Gated expert outputs in token order, 0 for the skip class; products in ``x.dtype``."""
    order = gpu.order(class_index, down.shape[0])
    (h,) = gpu.gate_up(x, order, gate_up.astype(x.dtype), keep=False, target=target)
    return _combine(target, h, order, gate, down)


def _combine(target: Target, h: Array, order: gpu.Order, gate: Array, down: Array) -> Array:
    return gpu.scattered_product(
        h,
        order,
        down.astype(h.dtype),
        gate.astype(jnp.float32),
        transposed=False,
        name="expert_down",
        target=target,
    )


def _forward(
    target: Target, x: Array, class_index: Array, gate: Array, gate_up: Array, down: Array
) -> tuple:
    order = gpu.order(class_index, down.shape[0])
    h, kept = gpu.gate_up(x, order, gate_up.astype(x.dtype), keep=True, target=target)
    saved = (x, class_index, gate, gate_up, down, order, kept)
    return _combine(target, h, order, gate, down), saved


def _backward(target: Target, saved: tuple, dout: Array) -> tuple:
    x, class_index, gate, gate_up, down, order, kept = saved
    dout = dout.astype(x.dtype)
    dkept, gated, dgate = gpu.swiglu_gradient(
        dout,
        order,
        down.astype(x.dtype),
        gate.astype(jnp.float32),
        kept,
        target=target,
    )
    dx = gpu.scattered_product(
        dkept,
        order,
        gate_up.astype(x.dtype),
        None,
        transposed=True,
        name="expert_dx",
        target=target,
    )
    weights = functools.partial(gpu.weight_gradient, order=order, target=target)
    ddown = weights(dout, gated, gather="a", dtype=down.dtype)
    dgate_up = weights(dkept, x, gather="b", dtype=gate_up.dtype)
    # Rows of the skip class were never written.
    place_of = (
        jnp.zeros_like(order.token_at)
        .at[order.token_at]
        .set(jnp.arange(order.token_at.size, dtype=jnp.int32), unique_indices=True)
    )
    dgate = jnp.where(class_index < down.shape[0], dgate[place_of], 0.0)
    return dx, None, dgate.astype(gate.dtype), dgate_up, ddown


expert_matmul.defvjp(_forward, _backward)
