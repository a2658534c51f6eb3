"""What k samples of each of n problems say, with nothing but counts.

    avg@k   mean correctness of k samples, averaged over problems
    pass@k  chance that one of k samples is right
    maj@k   chance that the answer given most often among k samples is right

pass@k and maj@k of a problem with n >= k samples are averages over all subsets of k of them, in
closed form, so that they are unbiased whatever n is. pass@k: Chen et al., arXiv 2107.03374.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float

_MOST_COUNTS = 2_000_000  # numbers the bootstrap holds at a time


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Chance that k of the samples, drawn without replacement, hold a right one.

    1 - C(samples - right, k) / C(samples, k).

    Raises:
      ValueError: unless 1 <= k <= samples and 0 <= right <= samples.
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise ValueError(f"pass@{k} of {right} right among {samples}: needs 1 <= k <= samples")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def majority_at_k(answers: Sequence[Hashable | None], right: Sequence[bool], k: int) -> float:
    """Chance that a vote among k of the samples, drawn without replacement, elects a right answer.

    Equal numbers of votes share the win. None is no answer and gets no vote; without any vote
    nothing is elected.

    Args:
      answers: of each sample; equal answers are one candidate.
      right: whether each sample is right; a candidate is right if its first sample is.
      k: size of the vote.

    Raises:
      ValueError: unless 1 <= k <= number of samples, or when the lengths differ.
    """
    total = len(answers)
    if not 1 <= k <= total or len(right) != total:
        raise ValueError(f"maj@{k} of {total} answers and {len(right)} marks: needs 1 <= k <= both")
    votes = collections.Counter(answer for answer in answers if answer is not None)
    is_right = {answer: mark for answer, mark in reversed(list(zip(answers, right, strict=True)))}
    silent = total - sum(votes.values())
    share = 0.0
    for candidate, count in votes.items():
        if is_right[candidate]:
            others = [n for other, n in votes.items() if other != candidate]
            share += _wins(count, others, silent, k)
    return share / math.comb(total, k)


def _wins(count: int, others: Sequence[int], silent: int, k: int) -> float:
    """Number of subsets of k that a candidate wins, ties shared.

    For each number of votes v it may get, `ways[d, t]` counts the choices of d votes for the others
    with nobody above v and t of them at v.
    """
    won = 0.0
    for v in range(1, min(count, k) + 1):
        left = k - v
        most_ties = left // v
        ways = np.zeros((left + 1, most_ties + 1))
        ways[0, 0] = 1.0
        for other in others:
            grown = np.zeros_like(ways)
            for d in range(min(other, v - 1, left) + 1):
                grown[d:] += math.comb(other, d) * ways[: left + 1 - d]
            if other >= v and v <= left:
                grown[v:, 1:] += math.comb(other, v) * ways[: left + 1 - v, :-1]
            ways = grown
        silences = np.array([float(math.comb(silent, left - d)) for d in range(left + 1)])
        shares = 1.0 / (1.0 + np.arange(most_ties + 1))
        won += math.comb(count, v) * float(silences @ ways @ shares)
    return won


def bootstrap_interval(
    values: Float[np.ndarray, " problems"],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean over problems.

    Problems are resampled, not samples: it says how far the mean would move with other problems of
    the same kind, which includes the noise of the k samples behind each value.

    Args:
      values: one for each problem, for example its share of right samples.
      confidence: chance that the interval is meant to hold.
      resamples: how many means are drawn.
      seed: of the draws.

    Raises:
      ValueError: without values, or for a confidence outside (0, 1).
    """
    if len(values) == 0 or not 0 < confidence < 1:
        raise ValueError(f"{len(values)} values at confidence {confidence}: nothing to bound")
    rng = np.random.default_rng(seed)
    count = len(values)
    # A mean of resampled values needs only how often each was drawn; in blocks, to bound memory.
    shares, numbers = np.full(count, 1.0 / count), np.asarray(values, np.float64)
    block = max(1, _MOST_COUNTS // count)
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    drawn = [rng.multinomial(count, shares, size=size) @ numbers / count for size in sizes]
    means = np.concatenate(drawn)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, (tail, 1.0 - tail))
    return float(low), float(high)


def standard_error(values: Float[np.ndarray, " problems"]) -> float:
    """Of the mean over problems; 0 for a single one, of which no spread is known."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def powers_up_to(samples: int) -> list[int]:
    """1, 2, 4, … and the number of samples itself: the k that tables show."""
    return sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})
