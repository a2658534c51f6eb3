"""The CCA mixing step on a chunk of a sequence: a state goes in, the next chunk's state comes out.

`kernels_pallas.cca` defines the step on whole sequences. A chunk needs what its first tokens look
back on: the last ``depthwise_width + grouped_width - 2`` projections and the last delayed value.
A fresh sequence has zeros there, and the delayed projection's bias.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect
from kernels_pallas.cca import CCAWeights, cca_mix, fitting
from kernels_pallas.gpu import cca_mix as gpu


class CCAState(NamedTuple):
    """What a chunk's first tokens look back on."""

    query_key: Float[Array, "batch reach channels"]  # projections of the tokens before
    value_delayed: Float[Array, "batch half_value"]  # delayed value of the token before


Outputs = tuple[
    Float[Array, "batch seq query_heads head_dim"],
    Float[Array, "batch seq kv_heads head_dim"],
    Float[Array, "batch seq kv_heads head_dim"],
]


def fresh_state(batch: int, weights: CCAWeights, dtype: jnp.dtype) -> CCAState:
    """The state before a sequence's first token."""
    channels, head_dim, grouped = weights.grouped.shape
    reach = weights.depthwise.shape[1] + grouped - 2
    half = weights.temperature.shape[0] * head_dim // 2
    bias = weights.delayed_value_bias
    value = jnp.zeros((half,)) if bias is None else bias
    return CCAState(
        jnp.zeros((batch, reach, channels), dtype),
        jnp.broadcast_to(value[None], (batch, half)).astype(dtype),
    )


def next_state(
    state: CCAState,
    query_key: Float[Array, "batch seq channels"],
    value_delayed: Float[Array, "batch seq half_value"],
    lengths: Int[Array, "batch"] | None = None,
) -> CCAState:
    """The state after a chunk; `lengths` counts each row's real tokens (None: all).

    What stands beyond a row's length may hold anything. A length out of range is refused; a traced
    one counts as the nearest that is in range.

    Raises:
      KernelError: for arrays that do not fit together.
    """
    query_key, value_delayed = expect.floats(
        "next_state", query_key=query_key, value_delayed=value_delayed
    )
    state = _fitting_state("next_state", state)
    (lengths,) = expect.integers("next_state", lengths=lengths)
    expect.axes(
        "next_state",
        query_key=(query_key, "batch seq channels"),
        value_delayed=(value_delayed, "batch seq half_value"),
    )
    batch, seq, channels = query_key.shape
    half_value = value_delayed.shape[2]
    reach = state.query_key.shape[1]
    expect.shapes(
        "next_state",
        value_delayed=(value_delayed, (batch, seq, half_value)),
        state_query_key=(state.query_key, (batch, reach, channels)),
        state_value_delayed=(state.value_delayed, (batch, half_value)),
        lengths=(lengths, (batch,)),
    )
    expect.within("next_state", lengths=(lengths, 0, seq))
    lengths = None if lengths is None else jnp.clip(lengths, 0, seq)
    count = jnp.full((batch,), seq, jnp.int32) if lengths is None else lengths
    rows = jnp.concatenate([state.query_key, query_key], axis=1)
    values = jnp.concatenate([state.value_delayed[:, None], value_delayed], axis=1)
    # Token t stands at place reach + t of `rows`; the last `reach` real ones are wanted.
    place = count[:, None] + jnp.arange(reach, dtype=jnp.int32)[None]
    return CCAState(
        jnp.take_along_axis(rows, place[:, :, None], axis=1),
        jnp.take_along_axis(values, count[:, None, None], axis=1)[:, 0],
    )


def _fitting_state(operation: str, state: CCAState) -> CCAState:
    names = [f"state_{name}" for name in CCAState._fields]
    arrays = expect.floats(operation, **dict(zip(names, state, strict=True)))
    kinds = zip(arrays, ("batch reach channels", "batch half_value"), strict=True)
    expect.axes(operation, **dict(zip(names, kinds, strict=True)))
    return CCAState(*arrays)


def cca_mix_chunk(
    query_key: Float[Array, "batch seq channels"],
    value_current: Float[Array, "batch seq half_value"],
    value_delayed: Float[Array, "batch seq half_value"],
    weights: CCAWeights,
    state: CCAState,
    *,
    cos: Float[Array, "batch seq half_rotary"],
    sin: Float[Array, "batch seq half_rotary"],
    segment_ids: Int[Array, "batch seq"] | None = None,
    implementation: backend.Implementation = "auto",
) -> Outputs:
    """`cca_mix` of a chunk whose first segment continues from `state`; differentiable in it too.

    No gradient reaches `cos` and `sin`.

    Raises:
      KernelError: for arrays that do not fit together, and where the Pallas form is asked for, or
        due, and cannot run.
    """
    streams, weights, cos, sin, segment_ids = fitting(
        "cca_mix_chunk", (query_key, value_current, value_delayed), weights, cos, sin, segment_ids
    )
    query_key, value_current, value_delayed = streams
    state = _fitting_state("cca_mix_chunk", state)
    fresh = jax.eval_shape(lambda: fresh_state(query_key.shape[0], weights, query_key.dtype))
    expect.shapes(
        "cca_mix_chunk",
        state_query_key=(state.query_key, fresh.query_key.shape),
        state_value_delayed=(state.value_delayed, fresh.value_delayed.shape),
    )
    target = backend.choose(implementation, "cca_mix_chunk", gpu.refusals(*streams, weights))
    if target is not None and query_key.size:
        return gpu.mix(target, gpu.prepare(*streams, weights, cos, sin, segment_ids, state))
    # The XLA form: the rows looked back on stand before the chunk and are cut off afterwards.
    ahead = max(state.query_key.shape[1], 1)
    if segment_ids is not None:
        segment_ids = jnp.pad(segment_ids, ((0, 0), (ahead, 0)), mode="edge")

    def lengthen(a: Array, rows: Array | None = None) -> Array:
        kept = 0 if rows is None else rows.shape[1]
        head = jnp.pad(a[:, :0], ((0, 0), (ahead - kept, 0), (0, 0)))
        return jnp.concatenate([head, *([] if rows is None else [rows.astype(a.dtype)]), a], axis=1)

    outputs = cca_mix(
        lengthen(query_key, state.query_key),
        lengthen(value_current),
        lengthen(value_delayed, state.value_delayed[:, None]),
        weights,
        cos=lengthen(cos),
        sin=lengthen(sin),
        segment_ids=segment_ids,
        implementation="xla",
    )
    q, k, v = (a[:, ahead:] for a in outputs)
    return q, k, v
