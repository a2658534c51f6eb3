"""The two compiled programs of the engine: a chunk of prompts, and some steps of decoding.

Every shape that reaches them comes from a short list of buckets, so the number of programs is
bounded. The cache is donated: it is changed in place.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, UInt8

from zaya_jax.config import ModelConfig
from zaya_jax.inference.cache import Cache
from zaya_jax.inference.forward import (
    Rows,
    SlotState,
    advance_slots,
    forward,
    load_slots,
    logits_of,
    store_slots,
    write_pages,
)
from zaya_jax.inference.mesh import (
    LAYERS_THEN_ROWS,
    ROWS,
    STEPS_THEN_ROWS,
    WHOLE,
    by_parts,
    weight_specs,
)
from zaya_jax.inference.sampling import RowSampling, Sampled, Variant, mark_seen, sample
from zaya_jax.inference.weights import Weights


class DecodeRows(NamedTuple):
    """Where each row's generation stands.

    Attributes:
      token: the sequence's newest token, whose keys and values are not cached yet.
      remaining: tokens it may still draw.
      drawn: tokens it has drawn.
      stop: tokens that end it; -1 fills up.
    """

    token: Int[Array | np.ndarray, " rows"]
    remaining: Int[Array | np.ndarray, " rows"]
    drawn: Int[Array | np.ndarray, " rows"]
    stop: Int[Array | np.ndarray, "rows stops"]


@flax.struct.dataclass
class Decoded:
    """What some steps of decoding produced; token -1 in a row that had ended.

    Attributes:
      token: drawn tokens.
      log_probability: see `Sampled`.
      raw_log_probability: see `Sampled`.
      routes: router classes of each step's *input* token.
      top_tokens: see `Sampled`.
      top_log_probabilities: see `Sampled`.
    """

    token: Int[Array, "steps rows"]
    log_probability: Float[Array, "steps rows"]
    raw_log_probability: Float[Array, "steps rows"]
    routes: UInt8[Array, "steps rows all_layers"]
    top_tokens: Int[Array, "steps rows top"]
    top_log_probabilities: Float[Array, "steps rows top"]


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def prefill(
    config: ModelConfig,
    mesh: Mesh | None,
    weights: Weights,
    cache: Cache,
    rows: Rows,
    tokens: Int[Array | np.ndarray, "rows seq"],
) -> tuple[Cache, UInt8[Array, "all_layers rows seq"]]:
    """Caches a chunk of each row's tokens; returns the classes the routers chose for them."""

    def of_part(weights: Weights, cache: Cache, rows: Rows, tokens: Array) -> tuple[Cache, Array]:
        state = load_slots(cache, rows)
        result = forward(config, weights, cache, state, rows, tokens)
        cache = store_slots(cache, rows, advance_slots(result, state, rows))
        return write_pages(config, cache, rows, result), result.routes

    in_specs = (weight_specs(weights), LAYERS_THEN_ROWS, ROWS, ROWS)
    out_specs = (LAYERS_THEN_ROWS, LAYERS_THEN_ROWS)
    run = by_parts(of_part, mesh, in_specs, out_specs)
    return run(weights, cache, rows, jnp.asarray(tokens))


@functools.partial(
    jax.jit, static_argnums=(0, 1), static_argnames=("variant", "most_steps"), donate_argnums=3
)
def decode(
    config: ModelConfig,
    mesh: Mesh | None,
    weights: Weights,
    cache: Cache,
    rows: Rows,
    decoding: DecodeRows,
    sampling: RowSampling,
    allowed: Bool[Array, " vocab"],
    steps: Int[Array | np.ndarray | np.int32, ""],
    *,
    variant: Variant,
    most_steps: int,
) -> tuple[Cache, Decoded]:
    """Draws up to `steps` tokens per row, at most `most_steps`, until every row has ended."""
    of_part = functools.partial(_decode_part, config, variant, most_steps)
    in_specs = (weight_specs(weights), LAYERS_THEN_ROWS, ROWS, ROWS, ROWS, WHOLE, WHOLE)
    run = by_parts(of_part, mesh, in_specs, (LAYERS_THEN_ROWS, STEPS_THEN_ROWS))
    return run(weights, cache, rows, decoding, sampling, allowed, jnp.asarray(steps))


def _decode_part(
    config: ModelConfig,
    variant: Variant,
    most_steps: int,
    weights: Weights,
    cache: Cache,
    rows: Rows,
    decoding: DecodeRows,
    sampling: RowSampling,
    allowed: Array,
    steps: Array,
) -> tuple[Cache, Decoded]:

    def go_on(loop: _Loop) -> Array:
        return (loop.step < steps) & jnp.any(loop.active)

    def one_step(loop: _Loop) -> _Loop:
        own = rows._replace(start=loop.start, length=loop.active.astype(jnp.int32))
        result = forward(config, weights, loop.cache, loop.state, own, loop.token[:, None])
        logits = logits_of(weights, result.final[:, 0])
        settings = sampling if loop.seen is None else sampling._replace(seen=loop.seen)
        drawn = sample(logits, allowed, settings, loop.drawn, variant)
        token = jnp.where(loop.active, drawn.token, -1)
        stopped = jnp.any(token[:, None] == decoding.stop, axis=1)
        remaining = loop.remaining - loop.active
        return _Loop(
            step=loop.step + 1,
            cache=write_pages(config, loop.cache, own, result),
            state=advance_slots(result, loop.state, own),
            start=loop.start + loop.active,
            token=jnp.where(loop.active, token, loop.token),
            drawn=loop.drawn + loop.active,
            remaining=remaining,
            active=loop.active & ~stopped & (remaining > 0),
            seen=None if loop.seen is None else mark_seen(loop.seen, token),
            output=_record(loop.output, loop.step, token, drawn, result.routes[:, :, 0].T),
        )

    layers, count = cache.columns.shape[0], decoding.token.shape[0]
    first = _Loop(
        step=jnp.int32(0),
        cache=cache,
        state=load_slots(cache, rows),
        start=jnp.asarray(rows.start),
        token=jnp.asarray(decoding.token),
        drawn=jnp.asarray(decoding.drawn),
        remaining=jnp.asarray(decoding.remaining),
        active=jnp.asarray(rows.length) > 0,
        seen=None if sampling.seen is None else jnp.asarray(sampling.seen),
        output=_nothing(most_steps, count, layers, variant.top),
    )
    last = lax.while_loop(go_on, one_step, first)
    return store_slots(last.cache, rows, last.state), last.output


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def restore(
    mesh: Mesh | None,
    cache: Cache,
    slot: Int[Array | np.ndarray, " parts"],
    page: Int[Array | np.ndarray, " parts"],
) -> Cache:
    """Puts the state at the end of a page into a slot, in the parts whose slot is not `NOWHERE`."""

    def of_part(cache: Cache, slot: Array, page: Array) -> Cache:
        assert cache.page_columns is not None
        assert cache.page_delayed is not None
        columns = cache.page_columns.at[:, page].get(mode="fill", fill_value=0.0)
        delayed = cache.page_delayed.at[:, page].get(mode="fill", fill_value=0.0)
        return dataclasses.replace(
            cache,
            columns=cache.columns.at[:, slot].set(columns, mode="drop"),
            delayed=cache.delayed.at[:, slot].set(delayed, mode="drop"),
        )

    run = by_parts(of_part, mesh, (LAYERS_THEN_ROWS, ROWS, ROWS), LAYERS_THEN_ROWS)
    return run(cache, jnp.asarray(slot), jnp.asarray(page))


class _Loop(NamedTuple):
    step: Array
    cache: Cache
    state: SlotState
    start: Array
    token: Array
    drawn: Array
    remaining: Array
    active: Array
    seen: Array | None
    output: Decoded


def _nothing(steps: int, rows: int, layers: int, top: int) -> Decoded:
    return Decoded(
        token=jnp.full((steps, rows), -1, jnp.int32),
        log_probability=jnp.zeros((steps, rows), jnp.float32),
        raw_log_probability=jnp.zeros((steps, rows), jnp.float32),
        routes=jnp.zeros((steps, rows, layers), jnp.uint8),
        top_tokens=jnp.zeros((steps, rows, top), jnp.int32),
        top_log_probabilities=jnp.zeros((steps, rows, top), jnp.float32),
    )


def _record(output: Decoded, step: Array, token: Array, drawn: Sampled, routes: Array) -> Decoded:
    return Decoded(
        token=output.token.at[step].set(token),
        log_probability=output.log_probability.at[step].set(drawn.log_probability),
        raw_log_probability=output.raw_log_probability.at[step].set(drawn.raw_log_probability),
        routes=output.routes.at[step].set(routes),
        top_tokens=output.top_tokens.at[step].set(drawn.top_tokens),
        top_log_probabilities=output.top_log_probabilities.at[step].set(
            drawn.top_log_probabilities
        ),
    )
