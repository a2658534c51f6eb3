"""Problems in, finished groups out: what rollouts need besides a sampler.

Safe to use from several threads: rollout workers share one curriculum.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.curriculum.scheduler import OnlineScheduler
from zaya_jax.rl.environments.protocol import (
    BrokenEnvironmentError,
    Environment,
    Problem,
    Score,
    sample_problem,
)
from zaya_jax.rl.prompts import PromptStyle
from zaya_jax.rl.records import Rollout, RolloutGroup
from zaya_jax.rl.sampler import Sampled, Sampler
from zaya_jax.rl.scoring import Scorer
from zaya_jax.rl.stage_config import StageConfig


class Asked(NamedTuple):
    """A problem, and its prompt as the model sees it."""

    problem: Problem
    prompt: list[int]


class GroupMaker:
    """See the module."""

    def __init__(
        self,
        config: StageConfig,
        environments: Sequence[Environment],
        scheduler: OnlineScheduler,
        *,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        held_out: Sequence[Environment] = (),
    ) -> None:
        """Puts the parts together.

        Args:
          config: of the stage.
          environments: by whose name the scheduler draws.
          scheduler: difficulties.
          encode: a user's turn to the prompt's tokens.
          decode: response tokens to text.
          held_out: environments to measure on.
        """
        self.config, self.scheduler = config, scheduler
        self._encode, self._decode = encode, decode
        self._held_out = tuple(held_out)
        self._lock = threading.Lock()
        thinks = config.prompt is PromptStyle.THINKING
        self._scorer = Scorer(environments, has_thinking=thinks, seconds=config.score_seconds)
        self.fault = ""  # why the last group that was not whole was not

    @property
    def environments(self) -> Mapping[str, Environment]:
        """Those that are learnt from, by name."""
        return self._scorer.environments

    def draw(self) -> Asked | None:
        """The curriculum's next problem; None when its environment could not make it."""
        with self._lock:
            name, difficulty, seed = self.scheduler.next()
        try:
            return self.ask(sample_problem(self.environments[name], difficulty, seed))
        except BrokenEnvironmentError as error:
            self.fault = str(error)
            return None

    def ask(self, problem: Problem) -> Asked:
        """A problem with its prompt."""
        return Asked(problem, list(self._encode(problem.prompt)))

    def finish(
        self, asked: Asked, responses: Sequence[Sampled], scores: Sequence[Score] | None = None
    ) -> RolloutGroup | None:
        """Scores all responses to a problem, unless that has been done, and tells the curriculum.

        Returns:
          The group; None when it must not be trained on, for a verifier failed.
        """
        if scores is None:
            scores = self.scores(asked, responses)
        rollouts = tuple(
            _rollout(asked, response, score)
            for response, score in zip(responses, scores, strict=True)
        )
        started = min(int(response.versions.min()) for response in responses)
        group = RolloutGroup(asked.problem, rollouts, started)
        if (fault := group.check(self.config.group_size)) is not None:
            self.fault = fault
            return None
        if self.config.shuffle_rewards:
            group = shuffled(group, np.random.default_rng([self.config.seed, asked.problem.seed]))
        with self._lock:
            self.scheduler.observe(
                asked.problem.source, asked.problem.difficulty, float(group.rewards.mean())
            )
        return group

    def held_out_rewards(
        self, sampler: Sampler, problems: int, *, difficulty: int = 0
    ) -> dict[str, Float[np.ndarray, " problems"]]:
        """Rewards of one response to each of so many held-out problems, by environment.

        Their difficulty is the one given, or the environment's hardest if that is less. The
        curriculum is not told.
        """
        return {
            environment.name: self._rewards(environment, sampler, problems, difficulty)
            for environment in self._held_out
        }

    def _rewards(
        self, environment: Environment, sampler: Sampler, problems: int, difficulty: int
    ) -> Float[np.ndarray, " problems"]:
        if environment.hardest is not None:
            difficulty = min(difficulty, environment.hardest)
        asked = [
            self.ask(sample_problem(environment, difficulty, seed)) for seed in range(problems)
        ]
        responses = sampler.sample([one.prompt for one in asked], list(range(problems)))
        texts = [self.text_of(response.tokens) for response in responses]
        answered = [(one.problem, text) for one, text in zip(asked, texts, strict=True)]
        return np.array([score.reward for score in self._scorer.scores_of(environment, answered)])

    def scores(self, asked: Asked, responses: Sequence[Sampled]) -> list[Score]:
        """Scores of responses to a problem that is learnt from; the curriculum is not told."""
        texts = [self.text_of(response.tokens) for response in responses]
        return self._scorer.scores(asked.problem, texts)

    def text_of(self, tokens: np.ndarray) -> str:
        """Response tokens as text."""
        return self._decode(tokens.tolist())


def _rollout(asked: Asked, response: Sampled, score: Score) -> Rollout:
    return Rollout(
        prompt=np.array(asked.prompt, np.int32),
        tokens=response.tokens,
        log_probs=response.log_probs,
        versions=response.versions,
        routes=response.routes,
        reward=score.reward,
        truncated=response.truncated,
        broken=score.broken,
        reason=score.reason,
    )


def shuffled(group: RolloutGroup, order: np.random.Generator) -> RolloutGroup:
    """The group with its rewards in another order, for control runs."""
    rewards = order.permutation(group.rewards)
    rollouts = tuple(
        dataclasses.replace(rollout, reward=float(reward))
        for rollout, reward in zip(group.rollouts, rewards, strict=True)
    )
    return dataclasses.replace(group, rollouts=rollouts)
