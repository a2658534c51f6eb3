"""The errors of this part that a user can mend."""

from __future__ import annotations

from collections.abc import Sequence

SOLVED_FROM = 0.9  # mean reward of filtered groups from which they were too easy, not too hard


class RLError(ValueError):
    """A setting, record or program of the RL stages breaks a rule; names it and the mend."""


class NothingToLearnError(RLError):
    """No group of those drawn tells its rollouts apart.

    Attributes:
      is_solved: whether that is so since nearly all rollouts are right.
    """

    def __init__(self, drawn: str, mean_rewards: Sequence[float], fault: str = "") -> None:
        """Says what was drawn, mean rewards of the whole groups, and what ailed the others."""
        mean = sum(mean_rewards) / len(mean_rewards) if mean_rewards else 0.0
        self.is_solved = mean >= SOLVED_FROM
        found = f"mean reward {mean:.3f}" if mean_rewards else "none was whole"
        if not mean_rewards and fault:
            super().__init__(f"{drawn}: no group was whole; the last: {fault}")
            return
        super().__init__(
            f"{drawn} were filtered out ({found}): the problems are too easy or too hard for this "
            "policy, or their verifier fails; change the difficulty or the environments"
        )
