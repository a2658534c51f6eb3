"""How per-token losses add up to the loss of a step: one weight per token, made on the host.

    loss = sum over sequences i, response tokens t of weight_i * loss_it

with B sequences and N response tokens in the *whole* optimiser batch, all devices and microbatches:

    seq-mean-token-sum-norm (SMTSN)   weight_i = 1 / (B * S)       S a constant
    seq-mean-token-sum                weight_i = 1 / B
    seq-mean-token-mean (GRPO)        weight_i = 1 / (B * length_i)
    token-mean                        weight_i = 1 / N

The denominators belong to the batch and are fixed before it is cut: microbatches, packing and
devices only add up terms. Masked tokens, flagged rollouts and groups without advantage stay in B
and N. Sources: SMTSN, arXiv 2503.20783 and verl's `seq-mean-token-sum-norm`; others as in verl.
"""

from __future__ import annotations

import enum

import numpy as np
from jaxtyping import Float, Int

from zaya_jax.rl.errors import RLError


class Aggregation(enum.StrEnum):
    """What the sum of the token losses is divided by."""

    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"  # sequences times a constant
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"  # sequences
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"  # sequences times each one's own length
    TOKEN_MEAN = "token_mean"  # tokens


def token_weights(
    kind: Aggregation, response_lengths: Int[np.ndarray, " sequences"], *, norm: int = 1
) -> Float[np.ndarray, " sequences"]:
    """Weight of each token of each sequence, float64.

    Args:
      kind: the rule.
      response_lengths: response tokens of every sequence of the optimiser batch, 0 allowed.
      norm: S, read by seq_mean_token_sum_norm alone; the longest response a run allows is usual.

    Raises:
      RLError: for an empty batch, a negative length or a norm below 1.
    """
    count = len(response_lengths)
    if count == 0 or response_lengths.sum() == 0:
        raise RLError(f"{count} sequences without response tokens: there is nothing to train on")
    if response_lengths.min() < 0:
        raise RLError(f"response length {response_lengths.min()}: must not be negative")
    if norm < 1:
        raise RLError(f"norm={norm}: must be at least 1")
    match kind:
        case Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
            return np.full(count, 1.0 / (count * norm))
        case Aggregation.SEQ_MEAN_TOKEN_SUM:
            return np.full(count, 1.0 / count)
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return 1.0 / (count * np.maximum(response_lengths, 1))
        case Aggregation.TOKEN_MEAN:
            return np.full(count, 1.0 / response_lengths.sum())
