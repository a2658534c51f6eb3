"""The CCA mixing step with its gradient: the kernels put together."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas.backend import Target
from kernels_pallas.gpu import cca, cca_backward
from kernels_pallas.gpu.attention import segment_starts
from kernels_pallas.gpu.cca_block import Inputs, taps_by_distance


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def mix(target: Target, inputs: Inputs) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values; see `kernels_pallas.cca`."""
    return cca.forward(inputs, target=target)


def _forward(target: Target, inputs: Inputs) -> tuple:
    return mix(target, inputs), inputs


def _backward(target: Target, inputs: Inputs, cotangents: tuple) -> tuple[Inputs]:
    dquery, dkey, dvalue = cotangents
    dy, dtemperature = cca_backward.head_gradients(inputs, dquery, dkey, target=target)
    du = cca_backward.input_gradients(inputs, dy, target=target)
    products = cca_backward.correlations(inputs, dy, target=target)
    depthwise, depthwise_bias, grouped, grouped_bias = _weight_gradients(inputs, dy, products)
    current, delayed, delayed_bias, value_state = _value_gradients(inputs, dvalue)
    zeros = jnp.zeros_like
    gradients = Inputs(
        query_key=du,
        value_current=current,
        value_delayed=delayed,
        depthwise=depthwise,
        depthwise_bias=depthwise_bias,
        grouped=grouped.astype(inputs.grouped.dtype),
        grouped_bias=grouped_bias,
        temperature=dtemperature,
        delayed_bias=delayed_bias,
        cos=zeros(inputs.cos),
        sin=zeros(inputs.sin),
        start=None,  # type: ignore[arg-type]
        state=None if inputs.state is None else _state_gradient(inputs, dy),
        value_state=value_state,
    )
    return (gradients,)


mix.defvjp(_forward, _backward)


def _weight_gradients(inputs: Inputs, dy: jax.Array, products: jax.Array) -> tuple:
    """Gradients of taps and biases from R_d and sum_t dy_t, all float32 and small."""
    channels, head_dim, grouped_width = inputs.grouped.shape
    heads = channels // head_dim
    width = inputs.depthwise.shape[1]
    total = jnp.sum(dy.astype(jnp.float32), axis=(0, 1)).reshape(heads, head_dim)
    taps = taps_by_distance(inputs.grouped.astype(jnp.float32))
    taps = taps.reshape(-1, heads, head_dim, head_dim)  # [distance, heads, out, in]
    factors = inputs.depthwise[:, ::-1].T.reshape(-1, heads, 1, head_dim)
    bias = inputs.depthwise_bias.reshape(heads, 1, head_dim)
    dgrouped = []
    for j in range(grouped_width):
        terms = [factors[i] * products[i + j] for i in range(width)]
        dgrouped.append(sum(terms, bias * total[:, :, None]))
    ddepthwise = []
    for i in range(width):
        terms = [jnp.sum(taps[j] * products[i + j], axis=1) for j in range(grouped_width)]
        ddepthwise.append(sum(terms, jnp.zeros((heads, head_dim))))
    # distance back to tap: the newest token is the last tap
    grouped = jnp.stack(dgrouped[::-1], axis=-1).reshape(channels, head_dim, grouped_width)
    depthwise = jnp.stack(ddepthwise[::-1], axis=-1).reshape(channels, width)
    depthwise_bias = jnp.einsum("jhoc,ho->hc", taps, total).reshape(channels)
    return depthwise, depthwise_bias, grouped, total.reshape(channels)


def _value_gradients(inputs: Inputs, dvalue: jax.Array) -> tuple:
    """Gradients of both value streams, the delayed bias and the value before the first token."""
    batch, seq, half = inputs.value_current.shape
    flat = dvalue.reshape(batch, seq, 2 * half)
    current, late = flat[..., :half], flat[..., half:]
    place = jnp.arange(seq, dtype=jnp.int32)[None]
    seen = (place - 1 >= inputs.start)[..., None]  # the token before is of the same segment
    read = jnp.where(seen, late, jnp.zeros_like(late))
    delayed = jnp.pad(read[:, 1:], ((0, 0), (0, 1), (0, 0)))
    unseen = jnp.where(seen, 0.0, late.astype(jnp.float32))
    state = None if inputs.value_state is None else read[:, 0].astype(inputs.value_state.dtype)
    return current, delayed, jnp.sum(unseen, axis=(0, 1)), state


def _state_gradient(inputs: Inputs, dy: jax.Array) -> jax.Array:
    """Gradient of the projections before the first token: a few rows."""
    assert inputs.state is not None
    batch, reach, channels = inputs.state.shape
    matrices = cca_backward.combined_taps(inputs)  # [distance, heads, out, in]
    heads, head_dim = matrices.shape[1:3]
    rows = []
    for place in range(-reach, 0):
        total = jnp.zeros((batch, heads, head_dim))
        for t in range(min(place + reach + 1, dy.shape[1])):
            seen = (inputs.start[:, t] <= place)[:, None, None]
            d = dy[:, t].astype(jnp.float32).reshape(batch, heads, head_dim)
            step = jnp.einsum("bho,hoc->bhc", d, matrices[t - place])
            total = total + jnp.where(seen, step, 0.0)
        rows.append(total.reshape(batch, channels))
    if not rows:
        return jnp.zeros_like(inputs.state)
    return jnp.stack(rows, axis=1).astype(inputs.state.dtype)


def prepare(
    query_key: jax.Array,
    value_current: jax.Array,
    value_delayed: jax.Array,
    weights: Any,
    cos: jax.Array,
    sin: jax.Array,
    segment_ids: jax.Array | None,
    state: tuple[jax.Array, jax.Array] | None = None,
) -> Inputs:
    """The kernels' operands from those of `kernels_pallas.cca`, and a state to start from."""
    batch, seq, _ = query_key.shape
    bias = weights.delayed_value_bias
    reach = weights.depthwise.shape[1] + weights.grouped.shape[2] - 2
    start = jnp.zeros((batch, seq), jnp.int32)
    if segment_ids is not None:
        start = segment_starts(segment_ids)
    if state is not None:
        start = jnp.where(start == 0, -max(reach, 1), start)
    keeps_state = state is not None and reach > 0
    if cos.shape[2] == 0:  # nothing turns: a rotation by no angle
        cos, sin = (jnp.full((batch, seq, 1), value, jnp.float32) for value in (1.0, 0.0))
    return Inputs(
        query_key=query_key,
        value_current=value_current,
        value_delayed=value_delayed,
        depthwise=weights.depthwise.astype(jnp.float32),
        depthwise_bias=weights.depthwise_bias.astype(jnp.float32),
        grouped=weights.grouped,
        grouped_bias=weights.grouped_bias.astype(jnp.float32),
        temperature=weights.temperature.astype(jnp.float32),
        delayed_bias=jnp.zeros(value_delayed.shape[2])
        if bias is None
        else bias.astype(jnp.float32),
        cos=cos.astype(jnp.float32),
        sin=sin.astype(jnp.float32),
        start=start,
        state=state[0].astype(query_key.dtype) if state is not None and keeps_state else None,
        value_state=None if state is None else state[1].astype(value_delayed.dtype),
    )


def refusals(
    query_key: jax.Array, value_current: jax.Array, value_delayed: jax.Array, weights: Any
) -> list[str | None]:
    """Why the kernels cannot take these arrays; None entries are no reasons."""
    head_dim = weights.grouped.shape[1]
    widths = (weights.depthwise.shape[1], weights.grouped.shape[2])
    streams = (query_key, value_current, value_delayed)
    dtypes = {a.dtype for a in streams}
    same = len(dtypes) == 1 and dtypes <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)}
    return [
        None if head_dim <= 256 else f"head_dim = {head_dim} is more than 256",
        None if head_dim >= 2 else f"head_dim = {head_dim} is less than 2",
        None if max(widths) <= 4 else f"taps = {widths} are more than 4",
        None
        if same
        else f"dtypes {', '.join(str(a.dtype) for a in streams)} are not all float32 or bfloat16",
    ]
