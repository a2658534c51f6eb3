"""GRPO: rewards of a group, standardised.

    A_i = (s_i - mean(s)) / (std(s) + 1e-6),   s_i = task reward + bonus, std with divisor G - 1

The behavioural stage uses it, since reward-model scores are not binary.
Source: Shao et al., arXiv 2402.03300; the divisor as in verl.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.advantages.groups import RewardGroups

EPSILON = 1e-6


def grpo(rewards: RewardGroups) -> Float[np.ndarray, "groups size"]:
    """Standardised rewards; 0 in groups whose rewards are all equal."""
    centred = rewards.shaped - rewards.shaped.mean(axis=1, keepdims=True)
    spread = rewards.shaped.std(axis=1, ddof=1, keepdims=True)
    # Rounding of a mean of equal numbers must not be blown up.
    return np.where(np.ptp(rewards.shaped, axis=1, keepdims=True) > 0, centred, 0.0) / (
        spread + EPSILON
    )
