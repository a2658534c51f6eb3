"""How long a compiled call takes: the median of several, after warming up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

_LEAST_SECONDS = 2e-3  # shorter calls are timed in groups


def median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of one call, its results awaited."""
    jax.block_until_ready(call())
    start = time.perf_counter()
    jax.block_until_ready(call())
    once = time.perf_counter() - start
    group = max(1, min(100, int(_LEAST_SECONDS / max(once, 1e-7))))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(group - 1):
            call()
        jax.block_until_ready(call())
        times.append((time.perf_counter() - start) / group)
    return statistics.median(times)


def parse_size(text: str) -> int:
    """Bytes of `512`, `64K`, `16M` or `1G`, in powers of 1,024.

    Raises:
      ValueError: when it is no size.
    """
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(repr(text))
    return int(number) * unit


def powers_between(least: int, most: int, factor: int = 4) -> list[int]:
    """least, least * factor, … and most itself."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= factor
    return [*sizes, most]
