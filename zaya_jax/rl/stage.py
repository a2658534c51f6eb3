"""One stage of reinforcement learning, step by step and exactly on-policy.

    draw problems -> sample groups -> score -> filter, refill -> shape rewards -> advantages
      -> pack -> update -> hand the weights to the sampler

Everything random follows from the stage's seed and the step, or is kept in `get_state`: a stage
that is restored goes on with the same problems, samples and rewards.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from zaya_jax.rl.aggregation import Aggregation, token_weights
from zaya_jax.rl.canaries import rare_token_shares
from zaya_jax.rl.curriculum.scheduler import OnlineScheduler
from zaya_jax.rl.dynamic_sampling import GroupFilter, collect, teaches
from zaya_jax.rl.environments.protocol import (
    BrokenEnvironmentError,
    Environment,
    Problem,
    score_response,
)
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.length_reward import BestSolveRates
from zaya_jax.rl.packing import Rows, pack_rollouts
from zaya_jax.rl.records import Rollout, RolloutGroup
from zaya_jax.rl.rewards import RewardConfig, ShapedGroup, advantages_of, gate, shape
from zaya_jax.rl.sampler import Sampled, Sampler
from zaya_jax.rl.trainer import PolicyState, PolicyTrainer


@dataclasses.dataclass(frozen=True)
class StageConfig:
    """Settings of a stage.

    Raises:
      RLError: on construction, when a number is too small.
    """

    prompts: int = 128  # groups in a batch
    group_size: int = 16  # rollouts of a problem
    row_length: int = 131_072  # tokens of a packed row
    rows_per_microbatch: int = 1  # rows in one forward pass
    aggregation: Aggregation = Aggregation.SEQ_MEAN_TOKEN_SUM_NORM
    norm: int = 81_920  # the constant S of that aggregation
    group_filter: GroupFilter = GroupFilter.TASK  # which groups are trained on
    most_rounds: int = 8  # draws before a batch is trained on as it is
    router_replay: bool = True  # pin the sampler's routes in the trainer
    has_thinking: bool = True  # the model thinks before it answers
    shuffle_rewards: bool = (
        False  # a control: rewards trade places in each group, nothing is learnt
    )
    rewards: RewardConfig = dataclasses.field(default_factory=RewardConfig)
    seed: int = 0  # of problems and samples

    def __post_init__(self) -> None:
        least = {"prompts": 1, "group_size": 2, "row_length": 2, "rows_per_microbatch": 1}
        for name, value in {**least, "norm": 1, "most_rounds": 1}.items():
            if getattr(self, name) < value:
                raise RLError(f"stage: {name}={getattr(self, name)!r}: must be at least {value}")


class Stage:
    """See the module."""

    def __init__(
        self,
        config: StageConfig,
        environments: Sequence[Environment],
        scheduler: OnlineScheduler,
        sampler: Sampler,
        trainer: PolicyTrainer,
        *,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """Puts the parts together.

        Args:
          config: sizes and rules.
          environments: by whose name the scheduler draws.
          scheduler: difficulties.
          sampler: holds the weights of `version`.
          trainer: the update.
          encode: a user's turn to the prompt's tokens.
          decode: response tokens to text.
        """
        self.config, self.scheduler, self.sampler = config, scheduler, sampler
        self.trainer, self._encode, self._decode = trainer, encode, decode
        self.environments: Mapping[str, Environment] = {e.name: e for e in environments}
        self.best = BestSolveRates()
        self.last_groups: list[RolloutGroup] = []  # of the last step, to be shown

    def step(self, state: PolicyState) -> tuple[PolicyState, dict[str, Any]]:
        """One batch: rollouts, update, new weights for the sampler."""
        config, number, start = self.config, int(state.step), time.monotonic()
        rounds = iter(range(config.most_rounds))
        kept, dropped = collect(
            config.prompts,
            lambda count: self._draw_groups(count, number, next(rounds)),
            self._teaches,
            most_rounds=config.most_rounds,
        )
        sampled = time.monotonic()
        # Solve rates are those of all groups: the filter keeps only those in between.
        gated = [gate(group, config.rewards.repetition) for group in (*kept, *dropped)]
        shaped = shape(gated, self.best, config.rewards.length, step=number)[: len(kept)]
        state, metrics = self.trainer.update(state, self._pack(shaped))
        self.sampler.load_weights(state.variables)
        self.last_groups = kept
        seconds = {"sample_seconds": sampled - start, "train_seconds": time.monotonic() - sampled}
        canaries = {
            "flagged": sum(g.flagged for g in gated),
            "compression_min": min(float(g.ratios.min()) for g in gated),
            "bonus": float(np.mean([g.bonus.mean() for g in shaped])),
        }
        figures = rollout_metrics(kept, dropped, self.trainer.model.vocab_size)
        return state, {**metrics, **figures, **canaries, **seconds}

    def solve_rates(
        self, environments: Sequence[Environment], problems: int, *, difficulty: int = 0
    ) -> dict[str, float]:
        """Mean reward of one response to each of so many problems, by environment."""
        rates = {}
        for environment in environments:
            drawn = [environment.sample(difficulty, seed) for seed in range(problems)]
            prompts = [list(self._encode(problem.prompt)) for problem in drawn]
            responses = self.sampler.sample(prompts, list(range(problems)))
            scores = [
                self._score(environment, problem, response).reward
                for problem, response in zip(drawn, responses, strict=True)
            ]
            rates[environment.name] = float(np.mean(scores))
        return rates

    def text_of(self, tokens: np.ndarray) -> str:
        """Response tokens as text."""
        return self._decode(tokens.tolist())

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the policy; plain JSON values."""
        return {"scheduler": self.scheduler.get_state(), "best": self.best.get_state()}

    def set_state(self, state: Mapping[str, Any], policy: PolicyState) -> None:
        """Continues from a checkpoint, with the policy's weights in the sampler."""
        self.scheduler.set_state(state["scheduler"])
        self.best.set_state(state["best"])
        self.sampler.load_weights(policy.variables)

    def _draw_groups(self, count: int, step: int, attempt: int) -> list[RolloutGroup]:
        """New groups; those whose problem or verifier failed are left out."""
        problems = []
        for _ in range(count):
            name, difficulty, seed = self.scheduler.next()
            try:
                problems.append(self.environments[name].sample(difficulty, seed))
            except BrokenEnvironmentError:
                continue  # counted by its absence; the next round draws others
        size = self.config.group_size
        seeds = np.random.default_rng([self.config.seed, step, attempt]).integers(
            2**62, size=len(problems) * size
        )
        prompts = [list(self._encode(problem.prompt)) for problem in problems]
        responses = self.sampler.sample(
            [prompt for prompt in prompts for _ in range(size)], [int(seed) for seed in seeds]
        )
        groups = []
        with ThreadPoolExecutor(4, thread_name_prefix="score") as pool:
            for i, problem in enumerate(problems):
                mine = responses[i * size : (i + 1) * size]
                make = self._rollout_maker(problem, prompts[i])
                groups.append(RolloutGroup(problem, tuple(pool.map(make, mine)), min_version(mine)))
        whole = [group for group in groups if group.check(size) is None]
        if self.config.shuffle_rewards:
            order = np.random.default_rng([self.config.seed, step, attempt, 1])
            whole = [shuffled(group, order) for group in whole]
        for group in whole:
            source, difficulty = group.problem.source, group.problem.difficulty
            self.scheduler.observe(source, difficulty, float(group.rewards.mean()))
        return whole

    def _rollout_maker(
        self, problem: Problem, prompt: Sequence[int]
    ) -> Callable[[Sampled], Rollout]:
        environment = self.environments[problem.source]

        def make(response: Sampled) -> Rollout:
            score = self._score(environment, problem, response)
            return Rollout(
                prompt=np.array(prompt, np.int32),
                tokens=response.tokens,
                log_probs=response.log_probs,
                versions=response.versions,
                routes=response.routes,
                reward=score.reward,
                truncated=response.truncated,
                broken=score.broken,
                reason=score.reason,
            )

        return make

    def _score(self, environment: Environment, problem: Problem, response: Sampled) -> Any:
        text = self.text_of(response.tokens)
        return score_response(environment, problem, text, has_thinking=self.config.has_thinking)

    def _teaches(self, group: RolloutGroup) -> bool:
        kind, rewards = self.config.group_filter, self.config.rewards
        gated = gate(group, rewards.repetition)
        if kind is not GroupFilter.SHAPED:
            return teaches(kind, gated.task, np.zeros_like(gated.task))
        lengths = np.where(gated.task > 0, group.lengths, -1)  # the bonus tells only these apart
        return bool(np.ptp(lengths) > 0) or teaches(GroupFilter.TASK, gated.task, gated.task)

    def _pack(self, groups: Sequence[ShapedGroup]) -> list[Rows]:
        config, model = self.config, self.trainer.model
        rollouts = [rollout for g in groups for rollout in g.gated.group.rollouts]
        lengths = np.array([len(rollout.tokens) for rollout in rollouts])
        return pack_rollouts(
            rollouts,
            advantages_of(groups, config.rewards.advantage).reshape(-1),
            token_weights(config.aggregation, lengths, norm=config.norm),
            row_length=config.row_length,
            rows_per_microbatch=config.rows_per_microbatch,
            layers=model.num_layers,
            num_experts=model.num_experts,
            replay=config.router_replay,
        )


def shuffled(group: RolloutGroup, order: np.random.Generator) -> RolloutGroup:
    """The group with its rewards in another order, for control runs."""
    rewards = order.permutation(group.rewards)
    rollouts = tuple(
        dataclasses.replace(rollout, reward=float(reward))
        for rollout, reward in zip(group.rollouts, rewards, strict=True)
    )
    return dataclasses.replace(group, rollouts=rollouts)


def min_version(responses: Sequence[Sampled]) -> int:
    """The oldest weights that sampled any token."""
    return min(int(response.versions.min()) for response in responses)


def rollout_metrics(
    kept: Sequence[RolloutGroup], dropped: Sequence[RolloutGroup], vocab_size: int
) -> dict[str, Any]:
    """Rewards by source, lengths, truncation, rare tokens; over all groups, kept or not."""
    groups = [*kept, *dropped]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    by_source: dict[str, list[float]] = {}
    for group in groups:
        by_source.setdefault(group.problem.source, []).append(float(group.rewards.mean()))
    lengths = np.array([len(rollout.tokens) for rollout in rollouts])
    return {
        "reward": float(np.mean([rollout.reward for rollout in rollouts])),
        **{f"reward/{source}": float(np.mean(r)) for source, r in sorted(by_source.items())},
        "groups_kept": len(kept),
        "groups_dropped": len(dropped),
        "response_length": float(lengths.mean()),
        "truncated": float(np.mean([rollout.truncated for rollout in rollouts])),
        **rare_token_shares([rollout.tokens for rollout in rollouts], vocab_size),
    }
