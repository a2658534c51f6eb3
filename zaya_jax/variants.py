"""The choices of an architecture that ablations vary. Every default is what the releases have.

What only the released architecture can do (released layouts, the inference engine, meshes) says so
by `zaya_jax.released.require_released`.
"""

from __future__ import annotations

import enum


class AttentionKind(enum.StrEnum):
    """The attention block."""

    CCA = "cca"  # compressed convolutional attention, arXiv 2510.04476
    GQA = "gqa"  # grouped queries, arXiv 2305.13245; multi-head with as many KV heads as queries
    MLA = "mla"  # multi-head latent attention, arXiv 2405.04434


class Convolutions(enum.StrEnum):
    """Which of CCA's two convolutions queries and keys pass through."""

    BOTH = "both"  # per channel, then per head
    DEPTHWISE = "depthwise"  # per channel only
    NONE = "none"


class QueryKeyMean(enum.StrEnum):
    """The residual path around the convolutions of CCA."""

    GROUP = "group"  # half the sum of each query head and its KV head, before the convolutions
    NONE = "none"


class ValuePath(enum.StrEnum):
    """Where the values of CCA come from."""

    DELAYED_HALF = "delayed_half"  # half the channels from this token, half from the one before
    CURRENT = "current"  # all from this token


class RouterKind(enum.StrEnum):
    """How experts are scored."""

    MLP_EDA = "mlp_eda"  # three-layer MLP on a down-projection mixed over depth
    MLP = "mlp"  # the same without the mixing over depth
    LINEAR = "linear"  # one matrix on the block's input


class SkipClass(enum.StrEnum):
    """Whether the router has a class that sends the token past the experts."""

    ZERO = "zero"  # one extra class; the block's output for its tokens is exactly zero
    NONE = "none"  # the class keeps its place in every array, with probability 0


class BalancingRule(enum.StrEnum):
    """How the balancing biases of the router follow the load."""

    ADAMW = "adamw"  # AdamW on load minus target, arXiv 2605.05365 eq. 5


class ResidualKind(enum.StrEnum):
    """How a block's output is added to the residual stream."""

    SCALED = "scaled"  # learned bias and scale per channel on both branches
    PLAIN = "plain"  # added as it is; the embedding is not scaled either
