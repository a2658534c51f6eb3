"""What a query does not see never reaches it, finite or not.

Attention by matrix products multiplies what is invisible by a probability of zero, and zero times
NaN is NaN. So keys and values that are not finite are taken out before the products, and the
queries that do see them get NaN: `without_unfinite` before, `spoiled` after.

Such an output is no number and passes no gradient back: gradients are those of the other queries,
and zero for what was taken out.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Finite(NamedTuple):
    """Queries, keys and values with zeros where they are not finite, and where that is."""

    query: jax.Array  # [batch, queries, heads, head_dim]
    key: jax.Array  # [batch, keys, kv_heads, head_dim]
    value: jax.Array
    bad_query: jax.Array  # [batch, queries, heads]
    bad_key: jax.Array  # of the key or the value, in any head; [batch, keys]


def without_unfinite(query: jax.Array, key: jax.Array, value: jax.Array) -> Finite:
    """The arrays with heads of queries, and whole tokens of keys and values, set to zero."""
    bad_query = ~jnp.all(jnp.isfinite(query), axis=-1)
    bad_key = unfinite_keys(key, value)
    return Finite(
        jnp.where(bad_query[..., None], 0, query),
        jnp.where(bad_key[..., None, None], 0, key),
        jnp.where(bad_key[..., None, None], 0, value),
        bad_query,
        bad_key,
    )


def unfinite_keys(key: jax.Array, value: jax.Array) -> jax.Array:
    """Tokens whose key or value is not finite in some head, [batch, keys]."""
    return ~jnp.all(jnp.isfinite(key) & jnp.isfinite(value), axis=(-2, -1))


def spoiled(visible: jax.Array, bad_query: jax.Array, bad_key: jax.Array) -> jax.Array:
    """Heads of queries that are not finite or see what is not, [batch, queries, heads].

    ``visible`` is [batch or 1, queries, keys].
    """
    return bad_query | jnp.any(visible & bad_key[:, None, :], axis=-1)[..., None]
