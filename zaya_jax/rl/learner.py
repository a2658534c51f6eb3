"""From a batch of finished groups to new weights, wherever the groups come from.

repetition gate -> solve rates, length bonus -> advantages -> packing -> update
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zaya_jax.rl.aggregation import token_weights
from zaya_jax.rl.canaries import rare_token_shares
from zaya_jax.rl.dynamic_sampling import GroupFilter, teaches
from zaya_jax.rl.length_reward import BestSolveRates
from zaya_jax.rl.packing import Rows, pack_rollouts
from zaya_jax.rl.records import RolloutGroup
from zaya_jax.rl.rewards import ShapedGroup, advantages_of, gate, shape
from zaya_jax.rl.stage_config import StageConfig
from zaya_jax.rl.trainer import PolicyState, PolicyTrainer


class Learner:
    """See the module.

    Attributes:
      best: running maxima of solve rates; part of a stage's checkpoint.
    """

    def __init__(self, config: StageConfig, trainer: PolicyTrainer) -> None:
        self.config, self.trainer = config, trainer
        self.best = BestSolveRates()

    def teaches(self, group: RolloutGroup) -> bool:
        """Whether a group passes the stage's filter."""
        kind, rewards = self.config.group_filter, self.config.rewards
        gated = gate(group, rewards.repetition)
        if kind is not GroupFilter.SHAPED:
            return teaches(kind, gated.task, np.zeros_like(gated.task))
        lengths = np.where(gated.task > 0, group.lengths, -1)  # the bonus tells only these apart
        return bool(np.ptp(lengths) > 0) or teaches(GroupFilter.TASK, gated.task, gated.task)

    def learn(
        self, state: PolicyState, kept: Sequence[RolloutGroup], dropped: Sequence[RolloutGroup]
    ) -> tuple[PolicyState, dict[str, Any]]:
        """One update from `kept`; `dropped` are groups that the filter took out meanwhile.

        Solve rates are those of all groups: the filter keeps only those in between.
        """
        rewards = self.config.rewards
        gated = [gate(group, rewards.repetition) for group in (*kept, *dropped)]
        shaped = shape(gated, self.best, rewards.length, step=int(state.step))[: len(kept)]
        state, metrics = self.trainer.update(state, self._pack(shaped))
        canaries = {
            "flagged": sum(group.flagged for group in gated),
            "compression_min": min(float(group.ratios.min()) for group in gated),
            "bonus": float(np.mean([group.bonus.mean() for group in shaped])),
        }
        figures = rollout_metrics(kept, dropped, self.trainer.model.vocab_size)
        return state, {**metrics, **figures, **canaries}

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
