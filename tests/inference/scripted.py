"""A rollout engine whose every word is known, for testing what is built on top of one."""

from __future__ import annotations

import asyncio
import dataclasses

from zaya_jax.data.aggregation_prompt import Piece, Tokens
from zaya_jax.inference.rollouts import Budget, Rollout, RolloutError

TEMPLATE = 10  # tokens that the scripted template adds


@dataclasses.dataclass
class ScriptedEngine:
    """Candidate n, counted over all calls, thinks the tokens 1000 n, 1000 n + 1, ….

    Attributes:
      lengths: reasoning tokens that candidates want to use, repeated over the calls.
      failures: calls that fail.
      slow: calls that never return.
      oversized: whether prompts are reported longer than they are.
    """

    lengths: tuple[int, ...] = (30,)
    failures: frozenset[int] = frozenset()
    slow: frozenset[int] = frozenset()
    oversized: int = 0
    calls: list[tuple[tuple[Piece, ...], Budget, int]] = dataclasses.field(default_factory=list)

    async def rollout(self, prompt: tuple[Piece, ...], budget: Budget, seed: int) -> Rollout:
        number = len(self.calls)
        self.calls.append((prompt, budget, seed))
        await asyncio.sleep(0)
        if number in self.failures:
            raise RolloutError(f"call {number} was told to fail")
        if number in self.slow:
            await asyncio.sleep(3_600)
        wanted = self.lengths[number % len(self.lengths)]
        reasoning = tuple(1_000 * number + i for i in range(min(wanted, budget.thinking)))
        closed = wanted < budget.thinking
        answer = f"answer {seed}" if budget.answer else ""
        new_tokens = len(reasoning) + closed + 2 * bool(budget.answer)
        length = self.length(prompt) + self.oversized
        return Rollout(
            reasoning=reasoning,
            closed=closed,
            answer=answer,
            new_tokens=new_tokens,
            prompt_tokens=length,
            prefill_tokens=length,
            peak_context=length + new_tokens,
        )

    def text_of(self, tokens: Tokens) -> str:
        return " ".join(str(token) for token in tokens)

    def prompt_limit(self, prompt: tuple[Piece, ...]) -> int:
        return self.length(prompt)

    def length(self, prompt: tuple[Piece, ...]) -> int:
        """Words count as tokens."""
        return TEMPLATE + sum(len(piece.tokens or piece.text.split()) for piece in prompt)
