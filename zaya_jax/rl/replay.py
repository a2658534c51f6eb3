"""Router replay: the engine's expert choices, pinned in every forward pass of the trainer.

The engine records, for every token it feeds to the model and every layer, the raw router class
(the skip class is the last one). Row j belongs to input token j; the last sampled token is never
fed, so that a sequence of n tokens has n - 1 rows. Prompt tokens are replayed too: responses attend
to them. Where no row exists, and on padding, the sentinel lets the router choose.

Under replay the gate is the live softmax probability of the recorded class. Renormalising over the
chosen set, as published for several experts a token, would make it 1 and leave the router without
gradient. Source: Ma et al., arXiv 2510.11370; arXiv 2605.05365, Sec. V.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from zaya_jax.model.outputs import Routing
from zaya_jax.rl.errors import RLError

ROUTE_LIVE = -1  # no recorded choice: the router decides


class FlipCounts(NamedTuple):
    """How often live routing would have chosen another class than the recorded one; float32."""

    flipped: Float[Array, " layers"]
    replayed: Float[Array, " layers"]


def flip_counts(
    routing: Routing,
    biases: Float[Array, "layers classes"],
    routes: Int[Array, "layers batch seq"],
) -> FlipCounts:
    """Counts over replayed tokens. `routing` is the forward pass in which they were replayed."""
    live = jnp.argmax(routing.probabilities + biases[:, None, None, :], axis=-1)
    replayed = routes >= 0
    return FlipCounts(
        flipped=jnp.sum(replayed & (live != routes), axis=(1, 2)).astype(jnp.float32),
        replayed=jnp.sum(replayed, axis=(1, 2)).astype(jnp.float32),
    )


def place_routes(
    recorded: Integer[np.ndarray, "rows layers"], seq: int, *, layers: int, num_experts: int
) -> Int[np.ndarray, "layers seq"]:
    """Recorded rows of one sequence of `seq` input tokens, the missing rest routed live.

    Args:
      recorded: raw classes, any integer dtype, row j for input token j.
      seq: input tokens of the sequence.
      layers: of the model.
      num_experts: of the model; that number is the skip class.

    Raises:
      RLError: for more rows than tokens, more than one row missing, another number of layers, or a
        class that does not exist.
    """
    rows = recorded.shape[0]
    if recorded.shape[1] != layers:
        raise RLError(f"routes of {recorded.shape[1]} layers: the model has {layers}")
    if not seq - 1 <= rows <= seq:
        raise RLError(
            f"{rows} rows of routes for {seq} input tokens: expected {seq}, or {seq - 1} where the "
            "last token was sampled but not fed"
        )
    if rows and not (recorded.min() >= 0 and recorded.max() <= num_experts):
        raise RLError(
            f"routes {recorded.min()}..{recorded.max()}: must be raw classes 0..{num_experts}, "
            "recorded before any expert-parallel renaming"
        )
    placed = np.full((layers, seq), ROUTE_LIVE, np.int32)
    placed[:, :rows] = recorded.T
    return placed
