"""What a batch says about the policy: ratios, mask, sampler against trainer. Nothing is trained on.

Over the response tokens of a batch, with d_t = log pi_t - log mu_t and ratio_t = exp(d_t):

    kl_k1 = mean(-d_t)                        estimates KL(mu || pi); signed, noisy
    kl_k3 = mean(ratio_t - 1 - d_t)           the same, never negative
    pearson = correlation of mu_t and pi_t (probabilities)

KL is logged and never enters a reward. Estimators: Schulman, "Approximating KL divergence", 2020.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from zaya_jax.rl.errors import RLError

RATIO_QUANTILES = (0.01, 0.5, 0.99)


def policy_metrics(
    log_probs: Float[np.ndarray, " tokens"],
    rollout_log_probs: Float[np.ndarray, " tokens"],
    advantages: Float[np.ndarray, " tokens"],
    kept: Bool[np.ndarray, " tokens"],
    *,
    ratio_cap: float,
) -> dict[str, float]:
    """Figures over the response tokens of one optimiser batch, given one after another.

    Shares of blocked tokens are given over tokens of positive and of negative advantage, over
    those with an advantage, and over all.

    Raises:
      RLError: for an empty batch.
    """
    if len(log_probs) == 0:
        raise RLError("no response tokens: there is nothing to measure")
    new, old = log_probs.astype(np.float64), rollout_log_probs.astype(np.float64)
    difference = new - old
    ratio = np.exp(np.clip(difference, -20.0, 20.0))
    blocked = ~kept
    return {
        "kl_k1": float(-difference.mean()),
        "kl_k3": float((ratio - 1.0 - difference).mean()),
        "pearson": _pearson(np.exp(old), np.exp(new)),
        "ratio_min": float(ratio.min()),
        **{f"ratio_q{round(100 * q):02d}": float(np.quantile(ratio, q)) for q in RATIO_QUANTILES},
        "ratio_max": float(ratio.max()),
        "ratio_capped": float((ratio > ratio_cap).mean()),
        "blocked": float(blocked.mean()),
        "blocked_with_advantage": _share(blocked, advantages != 0),
        "blocked_positive": _share(blocked, advantages > 0),
        "blocked_negative": _share(blocked, advantages < 0),
    }


def _share(flags: np.ndarray, among: np.ndarray) -> float:
    return float(flags[among].mean()) if among.any() else 0.0


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation; 1 when both are equal, even if constant."""
    if np.array_equal(x, y):
        return 1.0
    x, y = x - x.mean(), y - y.mean()
    spread = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / spread) if spread > 0 else 0.0
