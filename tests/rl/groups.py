"""Rollouts and groups made by hand for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zaya_jax.rl.environments.protocol import Problem
from zaya_jax.rl.records import Rollout, RolloutGroup


def rollout(
    reward: float = 1.0, *, prompt: int = 2, length: int = 3, seed: int = 0, **fields: Any
) -> Rollout:
    """A rollout of random tokens with routes of a model of 2 layers and 4 experts."""
    random = np.random.default_rng(seed)
    made: dict[str, Any] = {
        "prompt": random.integers(1, 48, prompt).astype(np.int32),
        "tokens": random.integers(1, 48, length).astype(np.int32),
        "log_probs": np.log(random.uniform(0.1, 0.9, length)).astype(np.float32),
        "versions": np.zeros(length, np.int32),
        "routes": random.integers(0, 5, (prompt + length - 1, 2)).astype(np.uint8),
        "reward": reward,
        "truncated": False,
    }
    return Rollout(**{**made, **fields})


def group(
    rewards: Sequence[float], *, source: str = "sums", started: int = 0, **fields: Any
) -> RolloutGroup:
    problem = Problem(source, 1, 7, "1 + 1", {"answer": "2"})
    rollouts = tuple(rollout(r, seed=i, **fields) for i, r in enumerate(rewards))
    return RolloutGroup(problem, rollouts, started)
