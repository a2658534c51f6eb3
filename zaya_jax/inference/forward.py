"""One forward pass over new tokens of cached sequences, and the cache after it.

Every use is this one pass: a prompt in chunks of any size, or one token. Rows are sequences; a row
brings up to `seq` new tokens, padded on the right, and none at all where its length is 0. While
the layers run the cache is only read; what they add is written afterwards, in one go.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt8

from kernels_pallas.norm import rms_norm, scaled_residual_norm
from zaya_jax.config import ExpertDispatch, LayerType, ModelConfig
from zaya_jax.inference.attention import LayerState, NewEntries, Past, cached_attention
from zaya_jax.inference.cache import Cache, Pages, layers_of, state_columns
from zaya_jax.inference.experts import StackedExperts, expert_feed_forward
from zaya_jax.inference.mesh import own_classes, sum_over_experts
from zaya_jax.inference.weights import Weights
from zaya_jax.model.norm import ResidualScale
from zaya_jax.model.rope import rope_tables
from zaya_jax.model.router import Router

# An index that no array reaches: writes there are dropped.
NOWHERE = np.iinfo(np.int32).max


class Rows(NamedTuple):
    """Which sequences take part, and where their pages are.

    Attributes:
      slot: where the row's state is stored; `NOWHERE` in a row without a sequence.
      start: tokens of the sequence that are cached already.
      length: new tokens.
      table: ids of the row's pages in order, `NOWHERE` beyond the last.
      sliding_table: the same for sliding layers, from page `sliding_base` on.
      sliding_base: number of pages before the first in `sliding_table`.
    """

    slot: Int[Array, " rows"]
    start: Int[Array, " rows"]
    length: Int[Array, " rows"]
    table: Int[Array, "rows table"]
    sliding_table: Int[Array, "rows sliding_table"]
    sliding_base: Int[Array, " rows"]


class SlotState(NamedTuple):
    """The part of the cache that belongs to sequences rather than pages, by row."""

    columns: Float[Array, "all_layers rows columns channels"]
    delayed: Float[Array, "all_layers rows half_value"]


class Forward(NamedTuple):
    """What the pass computed.

    Attributes:
      final: after the last norm, float32.
      routes: chosen class of every layer and token; the last class is the skip class.
      entries: of every layer, to be written to the cache.
    """

    final: Float[Array, "rows seq hidden"]
    routes: UInt8[Array, "all_layers rows seq"]
    entries: tuple[NewEntries, ...]


def forward(
    config: ModelConfig,
    weights: Weights,
    cache: Cache,
    state: SlotState,
    rows: Rows,
    tokens: Int[Array, "rows seq"],
) -> Forward:
    """Runs the layers; reads the cache and changes nothing."""
    seq = tokens.shape[1]
    steps = jnp.arange(seq, dtype=jnp.int32)
    positions = rows.start[:, None] + steps[None, :]
    real = steps[None, :] < rows.length[:, None]
    residual = (weights.embedding[tokens] + weights.input_bias[None, None, :]) * (
        weights.input_scale[None, None, :]
    )
    router_state = jnp.zeros((*tokens.shape, config.router_hidden_size), jnp.float32)
    angles = _rope(config, rows.start, seq)
    first, *following = _stream_norms(config, weights)
    x = rms_norm(residual, first.weight, epsilon=config.rms_norm_epsilon).astype(first.dtype)
    routes, entries = [], []
    for index, kind in enumerate(config.layer_types):
        cos, sin = angles[kind]
        params = weights.layers[index]
        distance = steps[:, None] - steps[None, :]
        visible = (distance >= 0) & (distance < _reach(config, kind))
        attended, new = cached_attention(
            config,
            params["attention"],
            x,
            LayerState(state.columns[index], state.delayed[index]),
            _past(config, cache, rows, positions, index),
            begins=rows.start == 0,
            cos=cos,
            sin=sin,
            visible=visible,
        )
        expert_norm = Norm(params["expert_norm"]["weight"], first.dtype)
        residual, x = _add_and_norm(
            config, params["attention_residual"], attended, residual, expert_norm
        )
        routed: Any = Router(config).apply(
            {"params": params["router"]},
            x,
            previous_state=router_state,
            state_scale=weights.router_state_scale[index],
            balancing_biases=weights.balancing_biases[index],
        )
        router_state = routed.state
        output = _experts(config, params, x, routed, real)
        residual, x = _add_and_norm(
            config, params["expert_residual"], output, residual, following[index]
        )
        routes.append(routed.class_index.astype(jnp.uint8))
        entries.append(new)
    return Forward(x, jnp.stack(routes), tuple(entries))


def logits_of(weights: Weights, final: Float[Array, "rows hidden"]) -> Float[Array, "rows vocab"]:
    """The LM head, float32."""
    head = weights.embedding if weights.head_weight is None else weights.head_weight
    logits = jnp.einsum("rh,vh->rv", final, head, preferred_element_type=jnp.float32)
    return logits if weights.head_bias is None else logits + weights.head_bias[None, :]


def load_slots(cache: Cache, rows: Rows) -> SlotState:
    """The rows' state out of their slots."""
    return SlotState(
        cache.columns.at[:, rows.slot].get(mode="fill", fill_value=0.0),
        cache.delayed.at[:, rows.slot].get(mode="fill", fill_value=0.0),
    )


def store_slots(cache: Cache, rows: Rows, state: SlotState) -> Cache:
    """The cache with the rows' state in their slots."""
    return dataclasses.replace(
        cache,
        columns=cache.columns.at[:, rows.slot].set(state.columns, mode="drop"),
        delayed=cache.delayed.at[:, rows.slot].set(state.delayed, mode="drop"),
    )


def advance_slots(result: Forward, state: SlotState, rows: Rows) -> SlotState:
    """The rows' state after their new tokens; of rows without any, as it was."""
    width = state.columns.shape[2]
    columns = jnp.stack([_columns_after(e, rows.length, width) for e in result.entries])
    delayed = jnp.stack([_delayed_after(e, rows.length, width) for e in result.entries])
    moved = rows.length > 0
    return SlotState(
        jnp.where(moved[None, :, None, None], columns, state.columns),
        jnp.where(moved[None, :, None], delayed, state.delayed),
    )


def write_pages(config: ModelConfig, cache: Cache, rows: Rows, result: Forward) -> Cache:
    """The cache with the new tokens' keys and values in the rows' pages."""
    page = cache.full.key.shape[2]
    seq = result.final.shape[1]
    positions = rows.start[:, None] + jnp.arange(seq, dtype=jnp.int32)[None, :]
    real = jnp.arange(seq)[None, :] < rows.length[:, None]
    # Zero, but only known once every layer has read the cache: the writes are in place.
    after_reading = jnp.minimum(result.routes[-1].astype(jnp.int32), 0)
    offset = positions % page + after_reading

    def write(pages: Pages, kind: LayerType, table: Array, base: Array | int) -> Pages:
        layers = layers_of(config, kind)
        if not layers:
            return pages
        ids = _lookup(table, positions // page - base, real)
        key = jnp.stack([result.entries[index].key for index in layers])
        value = jnp.stack([result.entries[index].value for index in layers])
        return Pages(
            pages.key.at[:, ids, offset].set(key, mode="drop"),
            pages.value.at[:, ids, offset].set(value, mode="drop"),
        )

    full = write(cache.full, LayerType.FULL, rows.table, 0)
    base = rows.sliding_base[:, None]
    sliding = write(cache.sliding, LayerType.SLIDING, rows.sliding_table, base)
    cache = dataclasses.replace(cache, full=full, sliding=sliding)
    return cache if cache.page_columns is None else _write_page_ends(config, cache, rows, result)


def _write_page_ends(config: ModelConfig, cache: Cache, rows: Rows, result: Forward) -> Cache:
    """Stores the state after the last token of each page that the new tokens complete."""
    page, width = cache.full.key.shape[2], state_columns(config)
    assert cache.page_columns is not None
    assert cache.page_delayed is not None
    columns, delayed = cache.page_columns, cache.page_delayed
    for nth in range(result.final.shape[1] // page + 1):
        number = rows.start // page + nth
        taken = (number + 1) * page - rows.start  # new tokens up to the end of that page
        complete = taken <= rows.length
        ids = _lookup(rows.table, number[:, None], complete[:, None])[:, 0]
        taken = jnp.minimum(taken, rows.length)
        own_columns = jnp.stack([_columns_after(e, taken, width) for e in result.entries])
        own_delayed = jnp.stack([_delayed_after(e, taken, width) for e in result.entries])
        columns = columns.at[:, ids].set(own_columns, mode="drop")
        delayed = delayed.at[:, ids].set(own_delayed, mode="drop")
    return dataclasses.replace(cache, page_columns=columns, page_delayed=delayed)


def _lookup(table: Array, number: Array, wanted: Array) -> Array:
    """Page ids by number within the rows' tables; `NOWHERE` where not wanted."""
    inside = jnp.clip(number, 0, table.shape[1] - 1)
    return jnp.where(wanted, jnp.take_along_axis(table, inside, axis=1), NOWHERE)


def _columns_after(entries: NewEntries, taken: Array, width: int) -> Array:
    """The newest `width` columns after `taken` of the new tokens, float32."""
    index = taken[:, None] + jnp.arange(width)[None, :]
    newest = jnp.take_along_axis(entries.columns, index[:, :, None], axis=1)
    return newest.astype(jnp.float32)


def _delayed_after(entries: NewEntries, taken: Array, width: int) -> Array:
    index = taken[:, None, None] + width - 1
    return jnp.take_along_axis(entries.delayed, index, axis=1)[:, 0].astype(jnp.float32)


def _rope(config: ModelConfig, start: Array, seq: int) -> dict[LayerType, tuple[Array, Array]]:
    width = state_columns(config)
    positions = start[:, None] + jnp.arange(-width, seq, dtype=jnp.int32)[None, :]
    thetas = {
        LayerType.FULL: config.rope_theta,
        LayerType.SLIDING: config.sliding_rope_theta,
    }
    return {
        kind: rope_tables(positions, config.rotary_dim, thetas[kind])
        for kind in set(config.layer_types)
    }


def _reach(config: ModelConfig, kind: LayerType) -> int:
    """Keys that a token of such a layer sees, its own included."""
    if kind is LayerType.FULL or config.sliding_window is None:
        return NOWHERE
    return config.sliding_window


def _past(config: ModelConfig, cache: Cache, rows: Rows, positions: Array, index: int) -> Past:
    """The cached keys and values that one layer may look at."""
    kind = config.layer_types[index]
    own = layers_of(config, kind).index(index)
    if kind is LayerType.FULL:
        pages, table, base = cache.full, rows.table, 0 * rows.start
    else:
        pages, table, base = cache.sliding, rows.sliding_table, rows.sliding_base
    page = pages.key.shape[2]
    shape = (table.shape[0], table.shape[1] * page, *pages.key.shape[3:])
    # [rows, table, page, kv_heads, head_dim] -> [rows, past, kv_heads, head_dim]
    key = pages.key.at[own, table].get(mode="fill", fill_value=0).reshape(shape)
    value = pages.value.at[own, table].get(mode="fill", fill_value=0).reshape(shape)
    past_position = base[:, None] * page + jnp.arange(shape[1], dtype=jnp.int32)[None, :]
    distance = positions[:, :, None] - past_position[:, None, :]
    cached = past_position < rows.start[:, None]
    return Past(
        key,
        value,
        visible=cached[:, None, :] & (distance < _reach(config, kind)),
        length=rows.start - base * page,
        window=config.sliding_window if kind is LayerType.SLIDING else None,
    )


def _experts(
    config: ModelConfig, params: dict[str, Any], x: Array, routed: Any, real: Array
) -> Any:
    """Padding goes to the skip class: no expert's weights are read for it."""
    experts = params["experts"]
    # [rows, seq, ...] -> [rows * seq, ...]
    classes = jnp.where(real, routed.class_index, config.num_experts).reshape(-1)
    is_part = isinstance(experts, StackedExperts) and len(experts.down) < config.num_experts
    output = expert_feed_forward(
        x.reshape(-1, config.hidden_size),
        own_classes(classes, len(experts.down)) if is_part else classes,
        routed.gate.reshape(-1),
        experts,
        dispatch="dense" if config.expert_dispatch is ExpertDispatch.DENSE else "grouped",
        implementation=config.kernels.value,
    )
    return (sum_over_experts(output) if is_part else output).reshape(x.shape)


class Norm(NamedTuple):
    """One RMSNorm of the residual stream."""

    weight: Float[Array, " hidden"]
    dtype: DTypeLike  # of the result


def _stream_norms(config: ModelConfig, weights: Weights) -> list[Norm]:
    """The norm before each layer's attention, then the last one."""
    dtype = jnp.dtype(config.activation_dtype)
    before = [Norm(params["attention_norm"]["weight"], dtype) for params in weights.layers]
    return [*before, Norm(weights.final_norm["weight"], jnp.dtype(jnp.float32))]


def _add_and_norm(
    config: ModelConfig,
    params: dict[str, Any],
    block: Array,
    residual: Array,
    norm: Norm,
) -> tuple[Array, Array]:
    """The stream after a block, and its norm."""
    vectors: Any = ResidualScale().apply(
        {"params": params}, block.shape[-1], method=ResidualScale.parameters
    )
    return scaled_residual_norm(
        block,
        residual,
        **vectors._asdict(),
        norm_weight=norm.weight,
        epsilon=config.rms_norm_epsilon,
        norm_dtype=norm.dtype,
        implementation=config.kernels.value,
    )
