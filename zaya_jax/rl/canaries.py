"""Signs of degenerate text: repetition that compresses away, and tokens nobody uses.

Repetition: the token ids of a rollout, 4 bytes each, little-endian, go through one raw-deflate
stream in chunks of C tokens (a short last chunk joins the one before), flushed after each:

    r_c = (compressed bytes of chunk c - flush overhead) / (4 * tokens of chunk c)

A rollout is flagged when any r_c < 0.05; its task reward becomes 0 before advantages are made.
Window 2^10 bytes, level 1 and the bound are published (arXiv 2605.05365 eq. 16); bytes per id,
order, C and the overhead are ours. zlib looks back 762 of the 1024 bytes, so that loops of up to
190 tokens compress at all, and only those of up to about 70 below the bound: a canary for tight
loops. The lowest r_c is logged beside the flag.

Rare tokens: share of ids in the top 10, 5, 2 and 1% of the vocabulary. Watched, never gating.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from zaya_jax.rl.errors import RLError

RARE_SHARES = (0.10, 0.05, 0.02, 0.01)


@dataclasses.dataclass(frozen=True)
class RepetitionConfig:
    """Parameters of the compressor.

    Raises:
      RLError: on construction, when a field breaks a rule.
    """

    window_bits: int = 10  # window of 2^bits bytes
    level: int = 1  # of compression
    chunk_tokens: int = 512  # C
    flush_bytes: int = 5  # subtracted from each chunk: what a flush costs by itself
    flag_below: float = 0.05  # ratio; 0 = never

    def __post_init__(self) -> None:
        rules = {
            "window_bits": 9 <= self.window_bits <= 15,
            "level": 1 <= self.level <= 9,
            "chunk_tokens": self.chunk_tokens >= 16,
            "flush_bytes": self.flush_bytes >= 0,
            "flag_below": 0 <= self.flag_below < 1,
        }
        for name, holds in rules.items():
            if not holds:
                raise RLError(f"repetition canary: {name}={getattr(self, name)!r} is out of range")


def lowest_compression_ratio(tokens: Int[np.ndarray, " tokens"], config: RepetitionConfig) -> float:
    """The smallest r_c of a rollout; 1 for one shorter than a chunk, which cannot be judged."""
    chunks = len(tokens) // config.chunk_tokens
    if chunks == 0:
        return 1.0
    compressor = zlib.compressobj(config.level, zlib.DEFLATED, -config.window_bits)
    lowest = 1.0
    for i in range(chunks):
        end = len(tokens) if i == chunks - 1 else (i + 1) * config.chunk_tokens
        raw = tokens[i * config.chunk_tokens : end].astype("<i4").tobytes()
        packed = compressor.compress(raw) + compressor.flush(zlib.Z_SYNC_FLUSH)
        lowest = min(lowest, (len(packed) - config.flush_bytes) / len(raw))
    return lowest


def is_repetitive(ratio: float, config: RepetitionConfig) -> bool:
    """Whether a lowest ratio raises the flag."""
    return ratio < config.flag_below


def rare_token_shares(
    rollouts: Sequence[Int[np.ndarray, " _"]], vocab_size: int
) -> dict[str, float]:
    """Share of all tokens whose id is in the top x% of the vocabulary, by x."""
    tokens = np.concatenate(rollouts) if rollouts else np.zeros(0, np.int32)
    if len(tokens) == 0:
        return {f"rare_top_{round(100 * share)}": 0.0 for share in RARE_SHARES}
    return {
        f"rare_top_{round(100 * share)}": float(np.mean(tokens >= (1 - share) * vocab_size))
        for share in RARE_SHARES
    }
