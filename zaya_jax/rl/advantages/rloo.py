"""RLOO: each reward minus the mean of the others.

    A_i = s_i - (sum_{j != i} s_j) / (G - 1) = G / (G - 1) * (s_i - mean(s))

Source: Ahmadian et al., arXiv 2402.14740.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.advantages.groups import RewardGroups


def rloo(rewards: RewardGroups) -> Float[np.ndarray, "groups size"]:
    """Rewards against a leave-one-out baseline."""
    size = rewards.task.shape[1]
    centred = rewards.shaped - rewards.shaped.mean(axis=1, keepdims=True)
    return centred * (size / (size - 1))
