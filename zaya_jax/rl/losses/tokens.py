"""What a policy loss takes and gives, and its settings."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from zaya_jax.rl.errors import RLError

MOST_LOG_RATIO = 20.0  # log ratios are cut there, so that no exponential overflows


class PolicyTokens(NamedTuple):
    """Sampled tokens under two policies; rows may pack several sequences.

    Attributes:
      log_probs: log pi_t under the trained policy; the only one that carries gradients.
      rollout_log_probs: log mu_t as the engine reported it when it sampled the token.
      advantages: A_t, the sequence's advantage at each of its tokens.
      mask: true on response tokens.
      segment_ids: which sequence of its row a token belongs to; 0 is padding.
    """

    log_probs: Float[Array, "batch seq"]
    rollout_log_probs: Float[Array, "batch seq"]
    advantages: Float[Array, "batch seq"]
    mask: Bool[Array, "batch seq"]
    segment_ids: Int[Array, "batch seq"]


class TokenLosses(NamedTuple):
    """Losses to be summed with the weights of `zaya_jax.rl.aggregation`; 0 outside the response.

    Attributes:
      loss: per token, carries gradients.
      kept: false where the loss blocks a token's gradient; such tokens stay in the denominators.
    """

    loss: Float[Array, "batch seq"]
    kept: Bool[Array, "batch seq"]


@dataclasses.dataclass(frozen=True)
class PolicyLossConfig:
    """Which policy loss, and its bounds. Each loss reads its own fields only.

    Raises:
      RLError: on construction, when a field breaks a rule.
    """

    kind: str = "dppo_binary_tv"  # a LossKind, or `package.module:function`
    delta_low: float = 0.1  # DPPO: how far a probability may have fallen
    delta_high: float = 0.1  # DPPO: how far a probability may have risen
    ratio_cap: float = 20.0  # DPPO: C, the largest importance weight
    clip_low: float = 0.2  # PPO, GSPO, CISPO: the ratio is clipped to [1 - low, 1 + high]
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        for name in ("delta_low", "delta_high", "ratio_cap", "clip_low", "clip_high"):
            if not getattr(self, name) > 0:
                raise RLError(f"{name}={getattr(self, name)!r}: must be positive")


def log_ratio(tokens: PolicyTokens) -> Float[Array, "batch seq"]:
    """log pi_t - log mu_t, cut to [-20, 20]; 0 outside the response. Carries gradients."""
    difference = jnp.where(tokens.mask, tokens.log_probs - tokens.rollout_log_probs, 0.0)
    return jnp.clip(difference, -MOST_LOG_RATIO, MOST_LOG_RATIO)


def on_response(
    tokens: PolicyTokens, loss: Float[Array, "batch seq"], kept: Bool[Array, "batch seq"]
) -> TokenLosses:
    """Zero loss outside the response, where every token counts as kept."""
    return TokenLosses(jnp.where(tokens.mask, loss, 0.0), kept | ~tokens.mask)
