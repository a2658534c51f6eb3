"""How evenly the router spreads tokens over the experts of each layer, on given texts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from zaya_jax.config import ModelConfig
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.metrics import load_metrics


def router_load(
    config: ModelConfig,
    variables: dict[str, Any],
    rows: Int[np.ndarray, "rows seq"],
    *,
    rows_at_once: int = 4,
) -> dict[str, list[float]]:
    """Normalised load entropy H(p) / ln E, skip share, least and largest load of every layer.

    Args:
      config: architecture.
      variables: parameters and balancing biases.
      rows: token ids without padding.
      rows_at_once: of one forward pass.

    Raises:
      EvaluationError: without rows.
    """
    if len(rows) == 0:
        raise EvaluationError("no text fills a row; give longer texts or a shorter length")
    total: Any = 0.0
    for first in range(0, len(rows), rows_at_once):
        part = rows[first : first + rows_at_once]
        padding = rows_at_once - len(part)
        tokens = np.pad(part, ((0, padding), (0, 0)))
        real = np.zeros_like(tokens)
        real[: len(part)] = 1
        total = total + np.asarray(_class_counts(config, variables, tokens, real), np.float64)
    return load_metrics(total)


def text_rows(
    texts: Sequence[Sequence[int]], length: int, most_rows: int
) -> Int[np.ndarray, "rows length"]:
    """The first whole windows of so many tokens, each within one text."""
    rows: list[Sequence[int]] = []
    for ids in texts:
        ends = range(length, len(ids) + 1, length)
        rows += [ids[end - length : end] for end in ends]
        if len(rows) >= most_rows:
            break
    return np.asarray(rows[:most_rows], np.int32).reshape(-1, length)


@functools.partial(jax.jit, static_argnums=0)
def _class_counts(
    config: ModelConfig,
    variables: dict[str, Any],
    tokens: Int[Array, "rows seq"],
    segments: Int[Array, "rows seq"],
) -> Float[Array, "layers classes"]:
    states: Any = Transformer(config).apply(
        variables, tokens, segment_ids=segments, method=Transformer.hidden_states
    )
    return jnp.asarray(states.routing.class_counts)
