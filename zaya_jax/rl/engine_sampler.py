"""The inference engine as a sampler: cached, batched, with weights changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import FinishReason, Request, SamplingParams
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sampler import Sampled


class EngineSampler:
    """Draws at temperature 1 with nothing cut off; see `zaya_jax.rl.sampler.Sampler`."""

    def __init__(self, engine: Engine, *, stop_token: int, most_tokens: int) -> None:
        """Takes an engine without a tokenizer.

        Raises:
          RLError: for an engine with one: it never draws some tokens, so that its distribution is
            not the trainer's.
        """
        if engine.tokenizer is not None:
            raise RLError(
                "the engine of an RL sampler must have no tokenizer: with one it leaves padding "
                "and bos out, and its probabilities differ from the trainer's; use Engine(config, "
                "variables)"
            )
        self._engine, self._stop, self._most = engine, stop_token, most_tokens

    @property
    def version(self) -> int:
        """Of the engine's weights."""
        return self._engine.version

    def load_weights(self, variables: dict[str, Any]) -> int:
        """See `Sampler`."""
        return self._engine.load_weights(variables)

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Sampled]:
        """See `Sampler`.

        Raises:
          RequestError: for a prompt that the engine cannot serve.
        """
        requests = [
            Request(
                tuple(prompt),
                SamplingParams(max_tokens=self._most, seed=seed, stop_tokens=(self._stop,)),
            )
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        return [
            Sampled(
                tokens=np.array(completion.tokens, np.int32),
                log_probs=np.minimum(np.array(completion.log_probabilities, np.float32), 0.0),
                versions=np.array(completion.versions, np.int32),
                routes=completion.routes,
                truncated=completion.finish_reason is not FinishReason.STOP,
            )
            for completion in self._engine.generate(requests)
        ]
