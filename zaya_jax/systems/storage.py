"""How hard training reads from storage, and how long a checkpoint takes to write.

Reading, after arXiv 2605.05365, Appendix B: a step reads G sequences of s tokens of b bytes in
pages of P bytes. Scattered reads cost the factor sigma >= 1, about 1 + m P / (s b) with m page
faults per sample beyond its own pages.

    reads per step     N = sigma * ceil(G s b / P)
    reads per second   N / t        for a step of t seconds
    break-even step    N / I_max    below it storage of I_max reads per second is the bound

Checkpoints are bound by bandwidth, not by reads per second.
"""

from __future__ import annotations

import dataclasses
import math

from zaya_jax.config import ConfigError


@dataclasses.dataclass(frozen=True)
class ReadLoad:
    """What one step asks of storage, for a given scatter factor."""

    bytes_per_step: int
    pages_per_step: int  # without scatter
    scatter: float
    reads_per_second: float
    break_even_seconds: float


def scatter_factor(extra_faults: float, sequence_bytes: int, page_bytes: int = 4096) -> float:
    """Sigma of samples that each fault `extra_faults` pages beyond their own."""
    return 1.0 + extra_faults * page_bytes / sequence_bytes


def read_load(
    sequences: int,
    sequence_length: int,
    step_seconds: float,
    *,
    token_bytes: int = 4,
    page_bytes: int = 4096,
    most_reads_per_second: float = 70_000,
    scatter: float = 1.0,
) -> ReadLoad:
    """The load of a step.

    Raises:
      ConfigError: for a scatter factor below 1.
    """
    if scatter < 1:
        raise ConfigError(f"scatter={scatter}: the factor is at least 1, reads in perfect order")
    size = sequences * sequence_length * token_bytes
    pages = math.ceil(size / page_bytes)
    reads = scatter * pages
    return ReadLoad(size, pages, scatter, reads / step_seconds, reads / most_reads_per_second)


def save_seconds(checkpoint_bytes: float, writers: int, writer_gb_s: float) -> float:
    """Time to write a checkpoint of which every writer has an equal part."""
    return checkpoint_bytes / (writers * writer_gb_s * 1e9)
