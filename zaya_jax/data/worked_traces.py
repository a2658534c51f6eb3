"""Worked solutions of `reasoning_gym` problems: right ones, and ones with a slip in them.

A slip is what a hurried person makes: a sum off by a little, two letters swapped, a wrong
remainder. What follows the slip is worked out faithfully, so nothing but checking finds it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Worked(NamedTuple):
    """A trace and the answer it leads to."""

    reasoning: str
    answer: str


# From a problem's metadata to its solution; with a generator, one slip is drawn into it.
Trace = Callable[[Mapping[str, Any], random.Random | None], Worked]


def right_trace(task: str, metadata: Mapping[str, Any]) -> Worked:
    """The solution of a problem of one of `TRACES`."""
    return TRACES[task](metadata, None)


def wrong_trace(task: str, metadata: Mapping[str, Any], draw: random.Random) -> Worked:
    """A solution with a slip that leads to another answer than the right one."""
    right = right_trace(task, metadata)
    for _ in range(8):  # a slip may cancel out
        worked = TRACES[task](metadata, draw)
        if worked.answer != right.answer:
            return worked
    return Worked(right.reasoning, right.answer + right.answer[-1])  # the answer miscopied


def _chain_sum(metadata: Mapping[str, Any], slips: random.Random | None) -> Worked:
    """The running total, one operation a line; the slip: one total off by at most 3."""
    first, *rest = re.findall(r"[+-]? ?\d+", metadata["expression"])
    total, lines = int(first.replace(" ", "")), []
    slip_at = slips.randrange(len(rest)) if slips else -1
    for number, term in enumerate(rest):
        new = total + int(term.replace(" ", ""))
        if slips and number == slip_at:
            new += slips.choice([-3, -2, -1, 1, 2, 3])
        lines.append(f"{total} {term[0]} {term[1:].strip()} = {new}")
        total = new
    return Worked("\n".join(lines), str(total))


def _spell_backward(metadata: Mapping[str, Any], slips: random.Random | None) -> Worked:
    """The letters one by one, then from the last to the first; the slip: two neighbours swapped."""
    letters = list(metadata["word"])
    backward = letters[::-1]
    if slips and len(letters) > 1:
        at = slips.randrange(len(letters) - 1)
        backward[at], backward[at + 1] = backward[at + 1], backward[at]
    return Worked(f"{' '.join(letters)}\n{' '.join(backward)}", "".join(backward))


def _gcd(metadata: Mapping[str, Any], slips: random.Random | None) -> Worked:
    """Euclid's algorithm; the slip: one wrong remainder, where chance has it."""
    numbers = list(metadata["numbers"])
    divisor, lines = numbers[0], []
    for number in numbers[1:]:
        larger, smaller = max(divisor, number), min(divisor, number)
        while smaller:
            remainder = larger % smaller
            if slips and smaller > 1 and slips.random() < 0.4:
                remainder = (remainder + slips.choice([1, 2, smaller - 1])) % smaller
                slips = None
            lines.append(f"{larger} mod {smaller} = {remainder}")
            larger, smaller = smaller, remainder
        divisor = larger
    return Worked("\n".join(lines), str(divisor))


TRACES: dict[str, Trace] = {
    "chain_sum": _chain_sum,
    "gcd": _gcd,
    "spell_backward": _spell_backward,
}
