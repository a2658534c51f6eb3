"""Ways to spend compute on one problem: a plain sample, a vote among many, Markovian RSA."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from zaya_jax.evaluation.models import Model, RefusedError, Sample, SampleError
from zaya_jax.evaluation.settings import (
    MAJORITY,
    MAJORITY_POPULATION,
    PLAIN,
    EvaluationConfig,
    SamplingConfig,
)
from zaya_jax.inference.markovian_rsa import markovian_rsa
from zaya_jax.inference.rollouts import RolloutError


class Try(NamedTuple):
    """What one try at a problem gave.

    Attributes:
      samples: final answers; several where they are many opinions of one try.
      refusal: why the model could not take the question; "" otherwise.
      new_tokens: generated in all.
      prefill_tokens: read in prompts.
      peak_context: most tokens in one context.
    """

    samples: tuple[Sample, ...]
    refusal: str
    new_tokens: int
    prefill_tokens: int
    peak_context: int


@runtime_checkable
class Method(Protocol):
    """How one try is made. `width` rollouts run at the same time."""

    @property
    def width(self) -> int:
        """Rollouts of one try that run side by side."""
        ...

    async def solve(self, prompt: str, seed: int, trace: Path) -> Try:
        """One try.

        Args:
          prompt: a user's turn.
          seed: of everything drawn.
          trace: where a method that takes long may keep what it has.

        Raises:
          SampleError: when it failed and may be asked again.
        """
        ...


class PlainSamples:
    """One or several samples that know nothing of each other."""

    def __init__(self, model: Model, sampling: SamplingConfig, width: int = 1) -> None:
        self.width = width
        self._model, self._sampling = model, sampling

    async def solve(self, prompt: str, seed: int, trace: Path) -> Try:
        """See `Method`."""
        tasks = [
            self._model.sample(prompt, self._sampling, derived_seed(seed, i) if i else seed)
            for i in range(self.width)
        ]
        try:
            samples = await asyncio.gather(*tasks)
        except RefusedError as error:
            return Try((), str(error), 0, 0, 0)
        new, read = (
            sum(getattr(sample, name) for sample in samples)
            for name in ("new_tokens", "prompt_tokens")
        )
        peak = max(sample.new_tokens + sample.prompt_tokens for sample in samples)
        return Try(tuple(samples), "", new, read, peak)


class MarkovianRSA:
    """Candidates that read the ends of each other's thinking."""

    def __init__(self, model: Model, config: EvaluationConfig, preset: str) -> None:
        self._config, self._preset = config, preset
        self._engine = model.rollouts(config.rsa.temperature, config.rsa.top_p)
        self.width = config.rsa.settings(preset, 0).population

    async def solve(self, prompt: str, seed: int, trace: Path) -> Try:
        """See `Method`; the trace lets a run go on that was stopped."""
        settings = self._config.rsa.settings(self._preset, seed)
        try:
            result = await markovian_rsa(self._engine, prompt, settings, trace)
        except RolloutError as error:
            trace.unlink(missing_ok=True)  # it holds failures, which another try must not inherit
            raise SampleError(str(error)) from error
        final = [own.rollout for own in result.populations[-1] if own.rollout is not None]
        samples = tuple(
            Sample(
                own.answer,
                self._engine.text_of(own.reasoning),
                own.new_tokens,
                own.prompt_tokens,
                not own.closed,
            )
            for own in final
        )
        spent = result.spent
        return Try(samples, "", spent.new_tokens, spent.prefill_tokens, spent.peak_context)


def make_method(
    name: str, model: Model, config: EvaluationConfig, sampling: SamplingConfig
) -> Method:
    """The method of a name in `METHODS`.

    Raises:
      ConfigError: for an unknown name, or settings that do not fit together.
    """
    if name == PLAIN:
        return PlainSamples(model, sampling)
    if name == MAJORITY:
        return PlainSamples(model, sampling, config.rsa.population or MAJORITY_POPULATION)
    return MarkovianRSA(model, config, name)


def derived_seed(*parts: str | int) -> int:
    """A seed below 2^31 that depends on all parts and on nothing else."""
    text = "\x00".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "big") >> 1
