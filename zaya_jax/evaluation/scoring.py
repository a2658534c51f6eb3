"""Log-likelihoods of given texts under a model: how likely each continuation is, and how greedy.

    log p(continuation | context) = sum_t log softmax(head(h_{t-1}))[token_t]

Rows are padded to a few lengths, so that few programs are compiled. The head is applied only to the
states that predict a scored token, and in chunks: float32 [chunk, vocab] exists at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from zaya_jax.config import ModelConfig
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.model.transformer import Transformer

LEAST_LENGTH = 32  # rows are padded to this, twice, four times as much, …
_CHUNK = 256  # tokens whose logits exist at once


class Scored(NamedTuple):
    """A continuation to score.

    Attributes:
      tokens: context and continuation.
      start: index of the first token to score; at least 1.
    """

    tokens: Sequence[int]
    start: int


class Likelihood(NamedTuple):
    """What a model gives a continuation.

    Attributes:
      log_likelihood: sum over its tokens, in nats.
      is_greedy: whether each of them is the most likely one.
    """

    log_likelihood: float
    is_greedy: bool


def likelihoods(
    config: ModelConfig,
    variables: dict[str, Any],
    rows: Sequence[Scored],
    *,
    rows_at_once: int = 8,
) -> list[Likelihood]:
    """Scores continuations, the longest rows first, so that memory runs out early if at all.

    Raises:
      EvaluationError: for a row that is longer than the model's context, or has nothing before
        what is to be scored.
    """
    most = config.max_position_embeddings
    for row in rows:
        if not 1 <= row.start <= len(row.tokens):
            raise EvaluationError(
                f"start={row.start} of {len(row.tokens)} tokens: a token can be scored only with "
                "another before it"
            )
        if len(row.tokens) - 1 > most:
            raise EvaluationError(
                f"a row of {len(row.tokens)} tokens exceeds the context of {most}"
            )
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i].tokens))
    results: dict[int, Likelihood] = {}
    for first in range(0, len(order), rows_at_once):
        chosen = order[first : first + rows_at_once]
        batch = _batch([rows[i] for i in chosen], rows_at_once, most)
        log_probs, is_best = jax.device_get(_scores(config, variables, *batch))
        for place, i in enumerate(chosen):
            count = len(rows[i].tokens) - rows[i].start
            results[i] = Likelihood(
                float(np.sum(log_probs[place, :count], dtype=np.float64)),
                bool(np.all(is_best[place, :count])),
            )
    return [results[i] for i in range(len(rows))]


class _Batch(NamedTuple):
    tokens: Int[np.ndarray, "rows length"]
    segments: Int[np.ndarray, "rows length"]  # 1 where a token is real
    sources: Int[np.ndarray, "rows scored"]  # whose state predicts each scored token
    targets: Int[np.ndarray, "rows scored"]


def _batch(rows: Sequence[Scored], height: int, most: int) -> _Batch:
    """Padded arrays; a row's last token predicts nothing and is left out."""
    length = _bucket(max(len(row.tokens) - 1 for row in rows), most)
    width = _bucket(max(len(row.tokens) - row.start for row in rows), most)
    batch = _Batch(
        *(np.zeros((height, length), np.int32) for _ in range(2)),
        *(np.zeros((height, width), np.int32) for _ in range(2)),
    )
    for i, row in enumerate(rows):
        count = len(row.tokens) - row.start
        batch.tokens[i, : len(row.tokens) - 1] = row.tokens[:-1]
        batch.segments[i, : len(row.tokens) - 1] = 1
        batch.sources[i, :count] = np.arange(row.start - 1, len(row.tokens) - 1)
        batch.targets[i, :count] = row.tokens[row.start :]
    return batch


def _bucket(size: int, most: int) -> int:
    bucket = LEAST_LENGTH
    while bucket < size:
        bucket *= 2
    return max(min(bucket, most), 1)


@functools.partial(jax.jit, static_argnums=0)
def _scores(
    config: ModelConfig,
    variables: dict[str, Any],
    tokens: Int[Array, "rows length"],
    segments: Int[Array, "rows length"],
    sources: Int[Array, "rows scored"],
    targets: Int[Array, "rows scored"],
) -> tuple[Float[Array, "rows scored"], Bool[Array, "rows scored"]]:
    """Log-probability of every target, and whether nothing is more likely."""
    model = Transformer(config)
    states: Any = model.apply(
        variables, tokens, segment_ids=segments, method=Transformer.hidden_states
    )
    head: Any = model.apply(variables, method=Transformer.head)
    weight, bias = head
    hidden = jnp.take_along_axis(states.final, sources[:, :, None], axis=1)
    # [rows, scored, hidden] -> [rows * scored, hidden]: the head does not see the sequence
    flat, ids = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    padding = -len(ids) % _CHUNK
    flat, ids = jnp.pad(flat, ((0, padding), (0, 0))), jnp.pad(ids, (0, padding))

    def of_chunk(part: tuple[Array, Array]) -> tuple[Array, Array]:
        own, wanted = part
        logits = jnp.matmul(own, weight.T, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias[None, :]
        chosen = jnp.take_along_axis(logits, wanted[:, None], axis=1)[:, 0]
        return chosen - jax.nn.logsumexp(logits, axis=1), chosen >= jnp.max(logits, axis=1)

    # [rows * scored + padding, ...] -> [chunks, chunk, ...]
    chunks = (flat.reshape(-1, _CHUNK, flat.shape[-1]), ids.reshape(-1, _CHUNK))
    log_probs, is_best = jax.lax.map(of_chunk, chunks)
    count = targets.size
    # [chunks, chunk] -> [rows, scored]
    return (
        log_probs.reshape(-1)[:count].reshape(targets.shape),
        is_best.reshape(-1)[:count].reshape(targets.shape),
    )
