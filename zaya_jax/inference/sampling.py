"""Drawing the next token of every row, each with its own settings and its own random numbers.

In this order: repetition penalty and logit bias, temperature, top-k, top-p, min-p. Each filter sees
the distribution that the one before left, renormalised. Equal probabilities share their fate: a
filter that keeps a token keeps every token as likely, so what is kept never depends on ids.

A draw inverts the cumulative distribution at one uniform number, which depends on nothing but the
request's seed and how many tokens it has drawn: the same request gives the same text whatever else
runs beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32


class RowSampling(NamedTuple):
    """The settings of every row; host or device arrays.

    Attributes:
      seed: key data of the request's random numbers.
      temperature: 0 takes the most likely token.
      top_k: most tokens to keep, ties apart; 0 keeps all.
      top_p: the least set of most likely tokens that reaches this is kept.
      min_p: tokens below this share of the most likely one's probability are dropped.
      repetition_penalty: divides positive and multiplies negative logits of tokens seen.
      seen: tokens of prompt and output; None where no row has a penalty.
      bias: added to the logits; None where no row has one.
    """

    seed: UInt32[Array | np.ndarray, "rows 2"]
    temperature: Float[Array | np.ndarray, " rows"]
    top_k: Int[Array | np.ndarray, " rows"]
    top_p: Float[Array | np.ndarray, " rows"]
    min_p: Float[Array | np.ndarray, " rows"]
    repetition_penalty: Float[Array | np.ndarray, " rows"]
    seen: Bool[Array | np.ndarray, "rows vocab"] | None
    bias: Float[Array | np.ndarray, "rows vocab"] | None


class Sampled(NamedTuple):
    """Drawn tokens and their log-probabilities.

    Attributes:
      token: the draws.
      log_probability: under the distribution that was sampled; 0 where it is one token.
      raw_log_probability: under the model's own softmax over its whole vocabulary.
      top_tokens: most likely tokens by the model's own softmax.
      top_log_probabilities: theirs.
    """

    token: Int[Array, " rows"]
    log_probability: Float[Array, " rows"]
    raw_log_probability: Float[Array, " rows"]
    top_tokens: Int[Array, "rows top"]
    top_log_probabilities: Float[Array, "rows top"]


class Variant(NamedTuple):
    """Which parts are compiled in; greedy decoding need not sort the vocabulary.

    Attributes:
      draws: whether any row has a temperature.
      filters: whether any row has top-k, top-p or min-p.
      top: how many alternatives to report.
    """

    draws: bool
    filters: bool
    top: int


def sample(
    logits: Float[Array, "rows vocab"],
    allowed: Bool[Array, " vocab"],
    rows: RowSampling,
    drawn: Int[Array, " rows"],
    variant: Variant,
) -> Sampled:
    """Draws one token per row.

    Args:
      logits: of the model, float32.
      allowed: tokens that may be drawn.
      rows: settings.
      drawn: tokens that each request has drawn before.
      variant: see `Variant`.
    """
    raw = jax.nn.log_softmax(logits, axis=-1)
    adjusted = _adjust(logits, rows)
    adjusted = jnp.where(allowed[None, :], adjusted, -jnp.inf)
    likeliest = jnp.argmax(adjusted, axis=-1).astype(jnp.int32)
    token, log_probability = likeliest, jnp.zeros(likeliest.shape, jnp.float32)
    if variant.draws:
        # The likeliest is moved to zero first: a tiny temperature overflows no logit.
        below = adjusted - jnp.max(adjusted, axis=-1, keepdims=True)
        scaled = below / jnp.where(rows.temperature > 0, rows.temperature, 1.0)[:, None]
        probabilities = jax.nn.softmax(scaled, axis=-1)
        if variant.filters:
            probabilities = keep_likely(
                probabilities,
                jnp.asarray(rows.top_k),
                jnp.asarray(rows.top_p),
                jnp.asarray(rows.min_p),
            )
        choice = _invert(probabilities, _uniform(jnp.asarray(rows.seed), drawn))
        token = jnp.where(rows.temperature > 0, choice, likeliest)
        own = jnp.take_along_axis(probabilities, token[:, None], axis=1)[:, 0]
        own = jnp.log(own) - jnp.log(jnp.sum(probabilities, axis=-1))
        log_probability = jnp.where(rows.temperature > 0, own, 0.0)
    top_values, top_tokens = jax.lax.top_k(raw, variant.top)
    return Sampled(
        token=token,
        log_probability=log_probability,
        raw_log_probability=jnp.take_along_axis(raw, token[:, None], axis=1)[:, 0],
        top_tokens=top_tokens,
        top_log_probabilities=top_values,
    )


def keep_likely(
    probabilities: Float[Array, "rows vocab"],
    top_k: Int[Array, " rows"],
    top_p: Float[Array, " rows"],
    min_p: Float[Array, " rows"],
) -> Float[Array, "rows vocab"]:
    """Zero for what top-k, then top-p, then min-p drop; what is kept is not renormalised."""
    descending = jnp.sort(probabilities, axis=-1)[:, ::-1]
    last = jnp.clip(jnp.where(top_k > 0, top_k, descending.shape[1]), 1, descending.shape[1]) - 1
    least_of_top_k = jnp.take_along_axis(descending, last[:, None], axis=1)
    descending = jnp.where(descending >= least_of_top_k, descending, 0.0)
    mass = jnp.cumsum(descending, axis=-1)
    before = mass - descending  # of the tokens that are more likely
    needed = before < top_p[:, None] * mass[:, -1:]
    reached = jnp.min(jnp.where(needed, descending, jnp.inf), axis=-1, keepdims=True)
    highest = descending[:, :1]  # always stays
    least_of_top_p = jnp.maximum(least_of_top_k, jnp.minimum(reached, highest))
    least = jnp.where(top_p[:, None] < 1.0, least_of_top_p, least_of_top_k)
    least = jnp.maximum(least, min_p[:, None] * highest)
    return jnp.where(probabilities >= least, probabilities, 0.0)


def mark_seen(
    seen: Bool[Array, "rows vocab"], token: Int[Array, " rows"]
) -> Bool[Array, "rows vocab"]:
    """Adds the drawn tokens to those that the repetition penalty holds down; -1 adds none."""
    ids = jnp.arange(seen.shape[1], dtype=token.dtype)
    return seen | (ids[None, :] == token[:, None])


def _adjust(logits: Array, rows: RowSampling) -> Array:
    if rows.seen is not None:
        penalty = jnp.asarray(rows.repetition_penalty)[:, None]
        penalised = jnp.where(logits > 0, logits / penalty, logits * penalty)
        logits = jnp.where(rows.seen, penalised, logits)
    return logits if rows.bias is None else logits + rows.bias


def _uniform(seed: Array, drawn: Array) -> Float[Array, " rows"]:
    """One number in [0, 1) per row."""

    def one(seed: Array, drawn: Array) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed), drawn)
        return jax.random.uniform(key, (), jnp.float32)

    return jax.vmap(one)(seed, drawn)


def _invert(probabilities: Array, uniform: Array) -> Int[Array, " rows"]:
    """The first token at which the cumulative distribution exceeds the number."""
    cumulative = jnp.cumsum(probabilities, axis=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    token = jnp.sum(cumulative <= target, axis=-1, dtype=jnp.int32)
    # Where rounding lifts the target to the total, the last token that is possible at all.
    last = probabilities.shape[1] - 1 - jnp.argmax(probabilities[:, ::-1] > 0, axis=-1)
    return jnp.minimum(token, last.astype(jnp.int32))
