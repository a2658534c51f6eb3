"""How many tokens both sides of a step made, and who waited for whom."""

from __future__ import annotations

from collections.abc import Sequence

from zaya_jax.rl.records import RolloutGroup


def tokens_of(groups: Sequence[RolloutGroup]) -> int:
    """Response tokens of all rollouts."""
    return sum(len(rollout.tokens) for group in groups for rollout in group.rollouts)


def throughput(
    drawn_tokens: int, trained: Sequence[RolloutGroup], *, waited: float, seconds: float
) -> dict[str, float]:
    """Figures of one step.

    Args:
      drawn_tokens: response tokens that samplers made meanwhile, those filtered out among them.
      trained: groups of the update.
      waited: seconds that the trainer had nothing to train on.
      seconds: of the whole step.
    """
    return {
        "rollout_tokens_per_second": drawn_tokens / seconds,
        "trained_tokens_per_second": tokens_of(trained) / seconds,
        "trainer_idle_share": waited / seconds,
    }
