"""What the kernels of the CCA mixing step share: operands, sizes, and the steps up to the norm.

A program owns a block of tokens of one KV head with its group of query heads. A head's channels are
kept as three parts, the two halves that RoPE turns and the rest, so that rotating and normalising
never move a channel between lanes. A token's convolutions see ``u_s`` only from its own segment:
``s >= start[t]``. Sums, means, norms and RoPE are float32.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from kernels_pallas.backend import Tiles, cdiv, dot, load, power_of_two, split_index, store

NORM_EPSILON = 1e-12


class Inputs(NamedTuple):
    """Operands of the kernels.

    Attributes:
      query_key: packed projections, [batch, seq, channels].
      value_current: [batch, seq, half_value].
      value_delayed: [batch, seq, half_value].
      depthwise: float32 [channels, depthwise_width], the last tap is the newest token.
      depthwise_bias: float32 [channels].
      grouped: [channels, head_dim, grouped_width].
      grouped_bias: float32 [channels].
      temperature: float32 [kv_heads].
      delayed_bias: float32 [half_value].
      cos: float32 [batch, seq, half_rotary].
      sin: the same.
      start: first place a token may read, int32 [batch, seq]; negative reaches into the state.
      state: projections before the first token, [batch, widths - 2, channels], or None.
      value_state: delayed values of the token before the first, [batch, half_value], or None.
    """

    query_key: jax.Array
    value_current: jax.Array
    value_delayed: jax.Array
    depthwise: jax.Array
    depthwise_bias: jax.Array
    grouped: jax.Array
    grouped_bias: jax.Array
    temperature: jax.Array
    delayed_bias: jax.Array
    cos: jax.Array
    sin: jax.Array
    start: jax.Array
    state: jax.Array | None
    value_state: jax.Array | None


class Sizes(NamedTuple):
    """What the kernels know at trace time."""

    tokens: int  # of a block
    inner: int  # channels multiplied at once
    seq: int
    head_dim: int
    kv_heads: int
    group: int  # query heads of a KV head
    half_rotary: int
    half_value: int
    depthwise: int  # taps
    grouped: int

    @property
    def reach(self) -> int:
        """How many tokens back the convolutions read."""
        return self.depthwise + self.grouped - 2

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """(first channel, channels) of the parts of a head."""
        half, rest = self.half_rotary, self.head_dim - 2 * self.half_rotary
        return ((0, half), (half, half)) + (((2 * half, rest),) if rest else ())


def sizes(inputs: Inputs, plan: Tiles) -> Sizes:
    """Sizes of the operands, and the block's."""
    channels, head_dim, grouped = inputs.grouped.shape
    kv_heads = inputs.temperature.shape[0]
    return Sizes(
        tokens=plan["tokens"],
        inner=min(plan["inner"], power_of_two(head_dim, 16)),
        seq=inputs.query_key.shape[1],
        head_dim=head_dim,
        kv_heads=kv_heads,
        group=channels // head_dim // kv_heads - 1,
        half_rotary=inputs.cos.shape[2],
        half_value=inputs.value_current.shape[2],
        depthwise=inputs.depthwise.shape[1],
        grouped=grouped,
    )


def operands(inputs: Inputs) -> dict[str, jax.Array]:
    """The arrays a kernel gets, by name; taps by distance, out before in."""
    arrays = {name: a for name, a in inputs._asdict().items() if a is not None}
    arrays["grouped"] = taps_by_distance(inputs.grouped).astype(inputs.query_key.dtype)
    arrays["depthwise"] = inputs.depthwise[:, ::-1].T  # [distance, channels]
    return arrays


def taps_by_distance(taps: jax.Array) -> jax.Array:
    """[channels, in, tap] -> [distance, channels, in]."""
    return jnp.moveaxis(taps[..., ::-1], -1, 0)


def part_columns(width: int) -> jax.Array:
    """Channel indices of a part, [1, padded width]."""
    return jax.lax.iota(jnp.int32, power_of_two(width, 16))[None, :]


class Block:
    """What one program reads: its tokens, and the steps from projections to turned heads."""

    def __init__(self, ref: dict[str, Any], size: Sizes) -> None:
        self.ref, self.size = ref, size
        block, self.kv_head, self.batch = (pl.program_id(axis) for axis in range(3))
        self.key_head = size.kv_heads * size.group + self.kv_head
        self.row = block * size.tokens + jax.lax.iota(jnp.int32, size.tokens)
        inside = self.row < size.seq
        self.start = load(ref["start"], self.batch, self.row, mask=inside)

    def before(self, distance: Any, channel: jax.Array, inside: jax.Array) -> jax.Array:
        """Projections ``distance`` tokens ago, float32; zero before the segment."""
        return read_before(
            self.ref, self.batch, self.row, self.start, distance, channel, inside, self.size
        )

    def own_parts(self, head: Any) -> list[jax.Array]:
        """The tokens' own projections of a head, part by part."""
        parts = []
        for first, width in self.size.parts:
            column = part_columns(width)
            channel = head * self.size.head_dim + first + column
            parts.append(self.before(0, channel, column < width))
        return parts

    def query_mean(self, head: Any) -> list[jax.Array]:
        """The mean of a query head and its key head."""
        pairs = zip(self.own_parts(head), self.own_parts(self.key_head), strict=True)
        return [0.5 * (query + key) for query, key in pairs]

    def key_mean(self) -> list[jax.Array]:
        """The mean of the group's query means."""
        group = self.size.group

        def add(g: jax.Array, total: list[jax.Array]) -> list[jax.Array]:
            own = self.own_parts(self.kv_head * group + g)
            return [t + part / group for t, part in zip(total, own, strict=True)]

        total = jax.lax.fori_loop(0, group, add, self.own_parts(self.key_head))
        return [0.5 * part for part in total]

    def before_norm(self, head: Any, mean: list[jax.Array]) -> list[jax.Array]:
        """Both convolutions of a head plus its mean, part by part, float32.

        One tap and ``inner`` input channels at a time, so that few taps are held at once.
        """
        size, ref = self.size, self.ref
        chunks = cdiv(size.head_dim, size.inner)
        totals, outs = [], []
        for (first, width), own in zip(size.parts, mean, strict=True):
            column = part_columns(width)
            out, valid = head * size.head_dim + first + column, column < width
            totals.append(own + load(ref["grouped_bias"], out, mask=valid))
            outs.append((out.T, valid.T))

        def step(t: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
            distance, chunk = split_index(t, chunks)
            column = chunk * size.inner + jax.lax.iota(jnp.int32, size.inner)[None, :]
            inside = column < size.head_dim
            mixed = self.mixed(distance, head * size.head_dim + column, inside)
            taps = [
                load(ref["grouped"], distance, out, column, mask=valid & inside)
                for out, valid in outs
            ]
            return [total + dot(mixed, tap, 1, 1) for total, tap in zip(totals, taps, strict=True)]

        return jax.lax.fori_loop(0, size.grouped * chunks, step, totals)

    def mixed(self, distance: jax.Array, channel: jax.Array, inside: jax.Array) -> jax.Array:
        """The depthwise convolution of the token ``distance`` places ago, rounded once."""
        total = load(self.ref["depthwise_bias"], channel, mask=inside)
        for i in range(self.size.depthwise):
            factor = load(self.ref["depthwise"], i, channel, mask=inside)
            total = total + self.before(distance + i, channel, inside) * factor
        return total.astype(self.ref["query_key"].dtype)

    def length(self, parts: list[jax.Array]) -> jax.Array:
        """The factor [tokens, 1] that brings a head to length sqrt(head_dim)."""
        return jax.lax.rsqrt(square_sum(parts) + NORM_EPSILON) * self.size.head_dim**0.5

    def rotate(self, parts: list[jax.Array], direction: float = 1.0) -> list[jax.Array]:
        """RoPE forwards (1) or backwards (-1)."""
        column = part_columns(self.size.half_rotary)
        mask = (self.row < self.size.seq)[:, None] & (column < self.size.half_rotary)
        cos, sin = (
            load(self.ref[name], self.batch, self.row[:, None], column, mask=mask)
            for name in ("cos", "sin")
        )
        first, second, *rest = parts
        sin = sin * direction
        return [first * cos - second * sin, second * cos + first * sin, *rest]

    def write_values(self, v_ref: Any) -> None:
        """Current channels, then those of the token before, split by flat channel into heads."""
        size, ref, row = self.size, self.ref, self.row[:, None]
        column = jax.lax.iota(jnp.int32, power_of_two(size.head_dim))[None, :]
        flat = self.kv_head * size.head_dim + column
        valid = (row < size.seq) & (column < size.head_dim)
        is_current = flat < size.half_value
        current = load(ref["value_current"], self.batch, row, flat, mask=valid & is_current)
        channel = flat - size.half_value
        delayed = valid & ~is_current
        seen = row - 1 >= self.start[:, None]
        bias = load(ref["delayed_bias"], channel, mask=~is_current & (column < size.head_dim))
        past = load(
            ref["value_delayed"], self.batch, row - 1, channel, mask=delayed & seen & (row > 0)
        )
        if "value_state" in ref:
            mask = delayed & seen & (row == 0)
            past = past + load(ref["value_state"], self.batch, channel, mask=mask)
        past = jnp.where(seen, past, bias.astype(past.dtype))
        value = jnp.where(is_current, current, past)
        store(v_ref, self.batch, row, self.kv_head, column, value=value, mask=valid)


def read_before(
    ref: dict[str, Any],
    batch: Any,
    row: jax.Array,
    start: jax.Array,
    distance: Any,
    channel: jax.Array,
    inside: jax.Array,
    size: Sizes,
) -> jax.Array:
    """Projections at ``row - distance``, float32: zero before ``start``, the state's before 0."""
    place = (row - distance)[:, None]
    seen = (place >= start[:, None]) & (row < size.seq)[:, None] & inside
    read = load(ref["query_key"], batch, place, channel, mask=seen & (place >= 0))
    if "state" in ref and not (isinstance(distance, int) and distance == 0):
        mask = seen & (place < 0)
        read = read + load(ref["state"], batch, place + size.reach, channel, mask=mask)
    return read.astype(jnp.float32)


def square_sum(parts: list[jax.Array]) -> jax.Array:
    """Squared length of each token's head, [tokens, 1]."""
    sums = [jnp.sum(p * p, axis=1, keepdims=True) for p in parts]
    return functools.reduce(jnp.add, sums)
