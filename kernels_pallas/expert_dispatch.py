"""Bring tokens of one expert together, and put their results back.

Definition: with ``class_index[t]`` in ``0..E`` (``E`` is the skip class), a stable sort lines the
tokens up so that every expert's tokens are contiguous and the skipped ones come last.
``x[token_at]`` goes into that order and ``y[place_of]`` comes back; both are gathers, because a
scatter of rows is slow on CPUs and the permutation's inverse is known.

Two orders are built here. ``group_tokens`` keeps the experts in their own order, as
``jax.lax.ragged_dot`` wants it. ``group_tokens_by_load`` puts the fullest expert first, so that
experts of about the same load sit next to each other and one loop of fixed shape can serve them
(``row_buckets``). Nothing has a capacity: every token has a place, whatever the load.

Cost: one sort of T int32 keys and O(T + E) integer work; no floating-point work.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


class Groups(NamedTuple):
    """Where every token goes, and where every expert finds its tokens."""

    token_at: Int[Array, " tokens"]  # token found at a sorted place
    place_of: Int[Array, " tokens"]  # sorted place of a token; the inverse of token_at
    expert: Int[Array, " experts"]  # expert id, in layout order
    start: Int[Array, " experts"]  # first sorted place of that expert's tokens
    load: Int[Array, " experts"]  # how many tokens it has


def _place(class_index: jax.Array, rank: jax.Array, expert: jax.Array, count: jax.Array) -> Groups:
    token_at = jnp.argsort(rank[class_index], stable=True).astype(jnp.int32)
    place_of = jnp.zeros_like(token_at)
    place_of = place_of.at[token_at].set(
        jnp.arange(token_at.size, dtype=jnp.int32), unique_indices=True
    )
    return Groups(token_at, place_of, expert, jnp.cumsum(count) - count, count)


def _count(class_index: jax.Array, num_experts: int) -> jax.Array:
    return jnp.bincount(class_index, length=num_experts + 1)[:num_experts].astype(jnp.int32)


def group_tokens(class_index: Int[Array, " tokens"], num_experts: int) -> Groups:
    """Group tokens with the experts in their own order, the skipped tokens last.

    Args:
      class_index: int32 ``[tokens]`` in ``0..num_experts``.
      num_experts: the number of real experts; also the index of the skip class.
    """
    rank = jnp.arange(num_experts + 1, dtype=jnp.int32)
    return _place(class_index, rank, rank[:num_experts], _count(class_index, num_experts))


def group_tokens_by_load(class_index: Int[Array, " tokens"], num_experts: int) -> Groups:
    """Group tokens with the fullest expert first, the skipped tokens last.

    Arguments as for ``group_tokens``; ties keep the experts' own order.
    """
    count = _count(class_index, num_experts)
    expert = jnp.argsort(-count, stable=True).astype(jnp.int32)
    rank = jnp.full((num_experts + 1,), num_experts, jnp.int32)
    rank = rank.at[expert].set(jnp.arange(num_experts, dtype=jnp.int32), unique_indices=True)
    return _place(class_index, rank, expert, count[expert])


def row_buckets(num_tokens: int, num_experts: int) -> tuple[int, ...]:
    """Ascending row counts for which a product is compiled; the last one holds all tokens.

    An expert's tokens are padded up to the next bucket. Near the mean load, where most experts of a
    balanced router fall, the steps are an eighth of the mean; far from it they are factors of two,
    because every bucket is one more loop to compile. Below 32 rows a product costs as much as with
    32, since it reads the same weights.
    """
    mean = -(-num_tokens // max(1, num_experts))
    eighths = [2, 4, 6, 7, 8, 9, 10, 12, 16, 24, 32]
    while mean * eighths[-1] < 8 * num_tokens:
        eighths.append(2 * eighths[-1])
    sizes = {max(32, -(-mean * n // 128) * 16) for n in eighths}  # multiples of 16
    return (*sorted(size for size in sizes if size < num_tokens), max(1, num_tokens))


def overhang(buckets: tuple[int, ...]) -> int:
    """How far past the last token an expert's bucket can reach, given ``group_tokens_by_load``.

    An expert with more than half of the tokens comes first, where its bucket fits; any other one
    ends at the last token at the latest, and its bucket reaches past its own end by less than the
    step to the next smaller bucket.
    """
    tokens = buckets[-1]
    steps = zip((0, *buckets), buckets, strict=False)
    return max(size - smaller for smaller, size in steps if 2 * smaller < tokens)
