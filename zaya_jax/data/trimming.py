"""Answer-preserving trimming: conversations cut to a budget of tokens without losing an answer.

For a budget of C tokens, in this order:

1. what fits stays as it is;
2. else the tail of the last assistant turn's reasoning is cut, just before its close;
3. if that is not enough, the think blocks of earlier turns go, tags and all, then 2 again;
4. what still does not fit is dropped.

A cut never falls inside a character: where a token ends in the middle of one, the cut moves back to
the token before, and the result is shorter than the budget by those few tokens. Trim from the full
source for every context length; a longer one keeps more reasoning.
"""

from __future__ import annotations

import dataclasses
import enum

from zaya_jax.data.chat import Part, Rendered, Segment
from zaya_jax.data.tokenizer import Tokenizer


class Outcome(enum.StrEnum):
    """What happened to an example."""

    KEPT = "kept"  # it fitted
    CUT = "cut"  # the last reasoning lost its tail
    EARLIER_DROPPED = "earlier dropped"  # reasoning of earlier turns went, and perhaps more
    DROPPED = "dropped"  # its answers alone are too long


def trim(example: Rendered, budget: int, tokenizer: Tokenizer) -> tuple[Rendered | None, Outcome]:
    """The example in at most `budget` tokens, or None.

    Args:
      example: the full conversation.
      budget: most tokens, all included.
      tokenizer: the one it was rendered with; tells where characters end.
    """
    if len(example) <= budget:
        return example, Outcome.KEPT
    last = max(segment.turn for segment in example.segments)  # the last assistant's
    cut = _cut_reasoning(example, last, budget, tokenizer)
    if cut is not None:
        return cut, Outcome.CUT
    shorter = _without_earlier_reasoning(example, last)
    if len(shorter) < len(example):
        cut = _cut_reasoning(shorter, last, budget, tokenizer)
        if cut is not None:
            return cut, Outcome.EARLIER_DROPPED
    return None, Outcome.DROPPED


def _cut_reasoning(
    example: Rendered, turn: int, budget: int, tokenizer: Tokenizer
) -> Rendered | None:
    excess = len(example) - budget
    if excess <= 0:
        return example
    for index, segment in enumerate(example.segments):
        if segment.part is Part.REASONING and segment.turn == turn:
            length = len(segment.ids) - excess
            if length < 0:
                return None
            ids = _whole_characters(segment.ids, length, tokenizer)
            parts = list(example.segments)
            parts[index] = dataclasses.replace(segment, ids=ids)
            return Rendered(tuple(parts))
    return None


def _without_earlier_reasoning(example: Rendered, turn: int) -> Rendered:
    def stays(segment: Segment) -> bool:
        return segment.part is Part.FIXED or segment.turn == turn

    return Rendered(tuple(segment for segment in example.segments if stays(segment)))


def _whole_characters(ids: tuple[int, ...], length: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    """At most `length` first tokens, ending where a character ends."""
    while 0 < length < len(ids):
        # A character is at most 4 bytes: it ends within the next 4 tokens or never.
        before = tokenizer.decode(ids[max(0, length - 4) : length])
        beyond = tokenizer.decode(ids[max(0, length - 4) : length + 4])
        if beyond.startswith(before):
            break
        length -= 1
    return ids[:length]
