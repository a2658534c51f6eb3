"""What Markovian RSA asks of an engine, and what it gets back."""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

from zaya_jax.data.aggregation_prompt import Piece, Tokens


class RolloutError(ValueError):
    """One rollout failed: the engine could not be reached, or refused. The message says why."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """What one rollout may spend, in new tokens.

    Attributes:
      thinking: reasoning beyond it is cut off.
      answer: 0 asks for no answer. Otherwise the think block is closed, by force where the model
        has not, and the answer follows.
    """

    thinking: int
    answer: int


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One chain of reasoning, and perhaps an answer.

    Attributes:
      reasoning: its tokens, at most the budget, without the tokens that close it.
      closed: whether the model ended its reasoning itself.
      answer: text after the reasoning; "" where none was asked for.
      new_tokens: tokens the model generated; what was put into its mouth does not count.
      prompt_tokens: of the prompt.
      prefill_tokens: tokens read in all calls together; more than the prompt where answering
        takes a second call.
      peak_context: most tokens that stood in the context at once.
    """

    reasoning: Tokens
    closed: bool
    answer: str
    new_tokens: int
    prompt_tokens: int
    prefill_tokens: int
    peak_context: int


@runtime_checkable
class RolloutEngine(Protocol):
    """Anything that can think about a prompt under a budget."""

    async def rollout(self, prompt: tuple[Piece, ...], budget: Budget, seed: int) -> Rollout:
        """One rollout; a user turn holds the pieces one after the other.

        Raises:
          RolloutError: when it failed; others go on.
        """
        ...

    def text_of(self, tokens: Tokens) -> str:
        """Text of a run of reasoning tokens."""
        ...

    def prompt_limit(self, prompt: tuple[Piece, ...]) -> int | None:
        """Most tokens that such a prompt can come to; None where the engine cannot know."""
        ...
