"""An engine without a model: two tokens a response, drawn from its seed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.rl.tiny_policy import MODEL
from zaya_jax.rl.environments.protocol import Problem
from zaya_jax.rl.sampler import Sampled

STOP = 3


class ScriptedEngine:
    """Ends every response after two steps. `allow` can hold it between steps."""

    def __init__(self) -> None:
        self.version, self.loaded = 0, list[Any]()
        self.allow = threading.Event()
        self.allow.set()
        self.fail_at: int | None = None
        self.steps = 0
        self._count = 0
        self._under_way: dict[int, tuple[list[int], list[int], list[int]]] = {}

    @property
    def idle(self) -> bool:
        return not self._under_way

    def load_weights(self, variables: Any) -> int:
        self.loaded.append(variables)
        self.version += 1
        return self.version

    def scores(self, problem: Problem, responses: Sequence[str]) -> None:
        pass

    def close(self) -> None:
        pass

    def submit(self, prompt: Sequence[int], seed: int) -> int:
        self._count += 1
        first = 10 + seed % 20
        self._under_way[self._count] = (list(prompt), [first, STOP], [])
        return self._count

    def step(self) -> list[tuple[int, Sampled]]:
        assert self.allow.wait(30)
        self.steps += 1
        if self.steps == self.fail_at:
            raise OSError("the device is gone")
        ended = []
        for number, (prompt, tokens, versions) in list(self._under_way.items()):
            versions.append(self.version)
            if len(versions) == len(tokens):
                del self._under_way[number]
                ended.append((number, _sampled(prompt, tokens, versions)))
        return ended

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Sampled]:
        return [
            _sampled(list(prompt), [10 + seed % 20, STOP], [self.version] * 2)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]


def _sampled(prompt: list[int], tokens: list[int], versions: list[int]) -> Sampled:
    fed = len(prompt) + len(tokens) - 1
    return Sampled(
        tokens=np.array(tokens, np.int32),
        log_probs=np.full(len(tokens), -3.0, np.float32),
        versions=np.array(versions, np.int32),
        routes=np.zeros((fed, MODEL.num_layers), np.uint8),
        truncated=False,
    )
