"""One stage of reinforcement learning, step by step and exactly on-policy.

    draw problems -> sample groups -> score -> filter, refill -> learn
      -> hand the weights to the sampler

Everything random follows from the stage's seed and the step, or is kept in `get_state`: a stage
that is restored goes on with the same problems, samples and rewards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.dynamic_sampling import collect
from zaya_jax.rl.group_maker import GroupMaker
from zaya_jax.rl.learner import Learner
from zaya_jax.rl.records import RolloutGroup
from zaya_jax.rl.sampler import Sampler
from zaya_jax.rl.throughput import throughput, tokens_of
from zaya_jax.rl.trainer import PolicyState


class Stage:
    """See the module."""

    def __init__(self, maker: GroupMaker, learner: Learner, sampler: Sampler) -> None:
        """Puts the parts together.

        Args:
          maker: problems and scores.
          learner: the update.
          sampler: holds the weights of `version`.
        """
        self.maker, self.learner, self.sampler = maker, learner, sampler
        self.last_groups: list[RolloutGroup] = []  # of the last step, to be shown

    def step(self, state: PolicyState) -> tuple[PolicyState, dict[str, Any]]:
        """One batch: rollouts, update, new weights for the sampler."""
        config, number, start = self.learner.config, int(state.step), time.monotonic()
        rounds = iter(range(config.most_rounds))
        kept, dropped = collect(
            config.prompts,
            lambda count: self._draw_groups(count, number, next(rounds)),
            self.learner.teaches,
            most_rounds=config.most_rounds,
            fault=lambda: self.maker.fault,
        )
        sampled = time.monotonic()
        state, metrics = self.learner.learn(state, kept, dropped)
        self.sampler.load_weights(state.variables)
        self.last_groups = kept
        waited, seconds = sampled - start, time.monotonic() - start
        return state, {
            **metrics,
            **throughput(tokens_of([*kept, *dropped]), kept, waited=waited, seconds=seconds),
            "workers_idle_share": 1.0 - waited / seconds,
            "sample_seconds": waited,
            "train_seconds": seconds - waited,
        }

    def held_out_rewards(
        self, problems: int, *, difficulty: int = 0
    ) -> dict[str, Float[np.ndarray, " problems"]]:
        """As `GroupMaker.held_out_rewards`, with the policy's weights."""
        return self.maker.held_out_rewards(self.sampler, problems, difficulty=difficulty)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the policy; plain JSON values."""
        return {
            "scheduler": self.maker.scheduler.get_state(),
            "best": self.learner.best.get_state(),
        }

    def set_state(self, state: Mapping[str, Any], policy: PolicyState) -> None:
        """Continues from a checkpoint, with the policy's weights in the sampler."""
        self.maker.scheduler.set_state(state["scheduler"])
        self.learner.best.set_state(state["best"])
        self.sampler.load_weights(policy.variables)

    def close(self) -> None:
        """Nothing runs between two steps."""

    def _draw_groups(self, count: int, step: int, attempt: int) -> list[RolloutGroup]:
        """New groups; those whose problem or verifier failed are left out."""
        # Problems that could not be made count by their absence: the next round draws others.
        asked = [one for one in (self.maker.draw() for _ in range(count)) if one is not None]
        size = self.learner.config.group_size
        seeds = np.random.default_rng([self.learner.config.seed, step, attempt]).integers(
            2**62, size=len(asked) * size
        )
        responses = self.sampler.sample(
            [one.prompt for one in asked for _ in range(size)], [int(seed) for seed in seeds]
        )
        groups = [
            self.maker.finish(one, responses[i * size : (i + 1) * size])
            for i, one in enumerate(asked)
        ]
        return [group for group in groups if group is not None]
