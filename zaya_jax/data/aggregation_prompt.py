"""The prompts of Markovian RSA: structure as in arXiv 2509.26626, wording our own.

Inference, supervised examples and reinforcement write them with these functions alone, so a model
is asked in the words it was trained on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

# Token ids, or the texts of single tokens where an engine knows no ids.
Tokens = tuple[int, ...] | tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a prompt; `tokens` where it was cut out of a rollout and must keep its length."""

    text: str
    tokens: Tokens | None = None


_AGGREGATE = (
    "Below are a problem and the closing parts of several attempts at it. Any of them may be "
    "wrong or unfinished. Use what is sound in them, decide between them where they disagree, and "
    "try another way if none convinces you. Then give one improved solution.\n\n"
)
_REFINE = (
    "Below are a problem and the closing part of an attempt at it, which may be wrong or "
    "unfinished. Check it, keep what is sound, and go on from there or try another way. Then give "
    "one improved solution.\n\n"
)
_CLOSING = "\n\nNow solve the problem. Give the final answer in the form the problem asks for."


def problem_prompt(problem: str) -> tuple[Piece, ...]:
    """The first round: the problem alone."""
    return (Piece(problem),)


def aggregation_prompt(problem: str, tails: Sequence[Piece]) -> tuple[Piece, ...]:
    """A later round: the problem, and what the drawn candidates pass on."""
    pieces = [Piece(_REFINE if len(tails) == 1 else _AGGREGATE), Piece(f"Problem:\n{problem}")]
    for number, tail in enumerate(tails, start=1):
        heading = "Attempt" if len(tails) == 1 else f"Attempt {number}"
        pieces += [Piece(f"\n\n--- {heading} ---\n"), tail]
    return (*pieces, Piece(_CLOSING))


def prompt_text(pieces: Sequence[Piece]) -> str:
    """The prompt as the text of one user turn."""
    return "".join(piece.text for piece in pieces)
