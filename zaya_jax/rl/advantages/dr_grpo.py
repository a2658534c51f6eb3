"""Dr-GRPO: rewards of a group minus their mean, not divided by their spread.

    A_i = s_i - mean(s),   s_i = task reward + bonus

Its other half, token sums divided by a constant instead of each response's length, is
`Aggregation.SEQ_MEAN_TOKEN_SUM_NORM`. Source: Liu et al., arXiv 2503.20783.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.advantages.groups import RewardGroups


def dr_grpo(rewards: RewardGroups) -> Float[np.ndarray, "groups size"]:
    """Centred rewards."""
    return rewards.shaped - rewards.shaped.mean(axis=1, keepdims=True)
