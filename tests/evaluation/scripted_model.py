"""A model whose every answer is known, and an engine for Markovian RSA like it."""

from __future__ import annotations

import asyncio
import dataclasses

from tests.inference.scripted import ScriptedEngine
from zaya_jax.data.aggregation_prompt import Piece
from zaya_jax.evaluation.models import RefusedError, Sample, SampleError
from zaya_jax.evaluation.settings import SamplingConfig
from zaya_jax.inference.rollouts import Budget, Rollout, RolloutEngine


@dataclasses.dataclass
class ScriptedModel:
    """Answers depend on prompt and seed alone.

    Attributes:
      stop_after: calls after which every further one stops the whole run, as a kill would.
      failing: calls that fail.
      refused: a prompt holding this is refused.
    """

    stop_after: int = 10**9
    failing: frozenset[int] = frozenset()
    refused: str = "\x00"
    identity: str = "scripted"
    calls: int = 0

    async def sample(self, prompt: str, sampling: SamplingConfig, seed: int) -> Sample:
        number, self.calls = self.calls, self.calls + 1
        await asyncio.sleep(0)
        if number >= self.stop_after:
            raise KeyboardInterrupt
        if number in self.failing:
            raise SampleError(f"call {number} was told to fail")
        if self.refused in prompt:
            raise RefusedError("the prompt is too long")
        value = seed % 4
        cut = value == 3
        return Sample("" if cut else f"\\boxed{{{value}}}", "hm " * value, 10 + value, 5, cut)

    def rollouts(self, temperature: float, top_p: float) -> RolloutEngine:
        return BoxingEngine()


class BoxingEngine(ScriptedEngine):
    """Final answers are boxes."""

    async def rollout(self, prompt: tuple[Piece, ...], budget: Budget, seed: int) -> Rollout:
        made = await super().rollout(prompt, budget, seed)
        answer = f"\\boxed{{{seed % 3}}}" if budget.answer else ""
        return dataclasses.replace(made, answer=answer)
