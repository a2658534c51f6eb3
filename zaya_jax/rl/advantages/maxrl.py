"""MaxRL: the gradient of log p to as high an order as the group allows.

With binary task rewards r_i of a group of G, K = sum r_i, rbar = K / G and bonus b_i:

    A_i = (r_i + b_i - baseline) / rbar,   0 for all i where K = 0

    baseline = rbar                `maxrl`: the bonus is added in the numerator only
    baseline = mean(r_i + b_i)     `maxrl_shaped_baseline`: advantages of a group sum to 0

Without bonus the estimator (1/G) sum_i A_i grad log pi(y_i) is unbiased for the truncated
maximum-likelihood objective J_T = -sum_{k=1..T} (1-p)^k / k with T = G - 1. Dividing by the mean
weights hard problems more; there is no division by the standard deviation.

Source: Tajwar et al., arXiv 2602.02710; the length reward's place, arXiv 2605.05365 eq. 10.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from zaya_jax.rl.advantages.groups import RewardGroups


def maxrl(rewards: RewardGroups) -> Float[np.ndarray, "groups size"]:
    """Advantages with the mean task reward as the baseline."""
    mean = rewards.task.mean(axis=1, keepdims=True)
    return _over_mean(rewards.shaped - mean, mean)


def maxrl_shaped_baseline(rewards: RewardGroups) -> Float[np.ndarray, "groups size"]:
    """Advantages with the mean of task reward plus bonus as the baseline."""
    centred = rewards.shaped - rewards.shaped.mean(axis=1, keepdims=True)
    return _over_mean(centred, rewards.task.mean(axis=1, keepdims=True))


def _over_mean(numerator: np.ndarray, mean: np.ndarray) -> np.ndarray:
    solved = mean > 0
    return np.where(solved, numerator / np.where(solved, mean, 1.0), 0.0)
