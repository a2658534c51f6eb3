"""A final answer in a box: how problems ask for it and answers give it, in training and grading."""

from __future__ import annotations

BOXED_INSTRUCTION = "Put the final answer into \\boxed{}."


def ask_boxed(problem: str) -> str:
    """The problem, with the request for a box behind it."""
    return f"{problem.rstrip()}\n\n{BOXED_INSTRUCTION}"


def boxed(answer: str) -> str:
    """The answer in its box."""
    return f"\\boxed{{{answer}}}"
