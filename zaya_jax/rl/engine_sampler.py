"""The inference engine as a sampler: cached, batched, with weights changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Completion, FinishReason, Request, SamplingParams
from zaya_jax.rl.environments.protocol import Problem
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sampler import Sampled


class EngineSampler:
    """Draws at temperature 1 with nothing cut off.

    Both a `zaya_jax.rl.sampler.Sampler` and a `zaya_jax.rl.rollout_worker.RolloutEngine`.
    """

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

    @property
    def devices(self) -> set[jax.Device]:
        """Where its weights and caches are."""
        return self._engine.devices

    @property
    def idle(self) -> bool:
        """Whether no response is under way."""
        return self._engine.idle

    def load_weights(self, variables: dict[str, Any]) -> int:
        """See `Sampler`."""
        return self._engine.load_weights(variables)

    def scores(self, problem: Problem, responses: Sequence[str]) -> None:
        """See `RolloutEngine`: responses are scored by whoever asks."""

    def close(self) -> None:
        """Nothing lives outside of this process."""

    def submit(self, prompt: Sequence[int], seed: int) -> int:
        """Begins a response; returns its number.

        Raises:
          RequestError: for a prompt that the engine cannot serve.
        """
        return self._engine.submit(self._request(prompt, seed))

    def step(self) -> list[tuple[int, Sampled]]:
        """Draws some tokens of all responses under way; returns those that ended, by number."""
        return [
            (update.number, _sampled(update.completion))
            for update in self._engine.step()
            if update.completion.finish_reason is not None
        ]

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Sampled]:
        """See `Sampler`.

        Raises:
          RequestError: for a prompt that the engine cannot serve.
        """
        requests = [
            self._request(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        return [_sampled(completion) for completion in self._engine.generate(requests)]

    def _request(self, prompt: Sequence[int], seed: int) -> Request:
        sampling = SamplingParams(max_tokens=self._most, seed=seed, stop_tokens=(self._stop,))
        return Request(tuple(prompt), sampling)


def _sampled(completion: Completion) -> Sampled:
    return Sampled(
        tokens=np.array(completion.tokens, np.int32),
        log_probs=np.minimum(np.array(completion.log_probabilities, np.float32), 0.0),
        versions=np.array(completion.versions, np.int32),
        routes=completion.routes,
        truncated=completion.finish_reason is not FinishReason.STOP,
    )
