"""Which whole examples share a window: best-fit decreasing over all lengths at once.

Examples go longest first, each into the fullest window that still holds it (arXiv 2404.10830).
Windows with equal room are interchangeable, so they are kept in one stack per amount of room, and
the smallest sufficient room is found in a bit set of two levels. A step costs a few operations on
integers of sqrt(L) bits for a window of L tokens.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Int64

from zaya_jax.data.config import DataError


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """Windows as lists of example indices, one behind the other.

    Attributes:
      examples: every index once, window by window, longest first within a window.
      starts: of each window in `examples`; the last entry is the end.
      fill: tokens in each window.
    """

    examples: Int64[np.ndarray, " examples"]
    starts: Int64[np.ndarray, " windows_and_end"]
    fill: Int64[np.ndarray, " windows"]

    def __len__(self) -> int:
        return len(self.fill)

    def window(self, index: int) -> Int64[np.ndarray, " members"]:
        """Examples of one window."""
        return self.examples[self.starts[index] : self.starts[index + 1]]


def plan_packing(
    lengths: Int64[np.ndarray, " examples"], window_length: int, seed: int = 0
) -> PackingPlan:
    """Packs all examples; windows come in random order.

    The number of windows depends on the lengths only, their contents and order on the seed as well.

    Args:
      lengths: tokens of each example, 1 to `window_length`.
      window_length: tokens of a window.
      seed: of the choice among equally long examples and of the order of windows.

    Raises:
      DataError: for an example that is empty or longer than a window.
    """
    lengths = np.asarray(lengths, np.int64)
    if lengths.size and (lengths.min() < 1 or lengths.max() > window_length):
        wrong = int(np.argmax((lengths < 1) | (lengths > window_length)))
        raise DataError(
            f"example {wrong} has {lengths[wrong]} tokens; packing takes 1 to {window_length}. "
            "Trim longer ones or raise sequence_length"
        )
    random = np.random.default_rng(seed)
    order = random.permutation(lengths.size)
    order = order[np.argsort(-lengths[order], kind="stable")]
    window_of, count = _assign(lengths[order].tolist(), window_length)
    renamed = random.permutation(count)[window_of]
    by_window = np.argsort(renamed, kind="stable")
    fill = np.bincount(renamed, weights=lengths[order], minlength=count).astype(np.int64)
    sizes = np.bincount(renamed, minlength=count)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return PackingPlan(order[by_window], starts, fill)


def fewest_windows(lengths: Int64[np.ndarray, " examples"], window_length: int) -> int:
    """No packing needs fewer: by total length, and because two long examples never share."""
    long = int(np.sum(np.asarray(lengths) * 2 > window_length))
    return max(long, math.ceil(int(np.sum(lengths)) / window_length))


def _assign(lengths: list[int], window_length: int) -> tuple[Int64[np.ndarray, " examples"], int]:
    """Window of each length, in the order given (longest first), and the number of windows.

    Plain integers and one loop: this runs once for every example of a corpus.
    """
    width = math.isqrt(window_length) + 1
    words = [0] * width  # bit b of word w: whether some window has room w * width + b
    nonempty = 0  # bit w: whether word w has a bit
    top = [-1] * (window_length + 1)  # by room: the window on top of its stack
    below: list[int] = []  # by window: the next one in its stack
    window_of = []
    for length in lengths:
        word, bit = divmod(length, width)
        bits = words[word] >> bit
        if bits:
            room = length + (bits & -bits).bit_length() - 1
        elif later := nonempty >> (word + 1):
            word += (later & -later).bit_length()
            bits = words[word]
            room = word * width + (bits & -bits).bit_length() - 1
        else:
            room = window_length
            top[room] = len(below)
            below.append(-1)
            word, bit = divmod(room, width)
            words[word] |= 1 << bit
            nonempty |= 1 << word
        window = top[room]
        top[room] = below[window]
        if top[room] < 0:
            words[word] ^= 1 << (room - word * width)
            if not words[word]:
                nonempty ^= 1 << word
        rest = room - length
        if rest:
            if top[rest] < 0:
                word, bit = divmod(rest, width)
                words[word] |= 1 << bit
                nonempty |= 1 << word
            below[window] = top[rest]
            top[rest] = window
        window_of.append(window)
    return np.asarray(window_of, np.int64), len(below)
