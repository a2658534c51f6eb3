"""PPO's clipped surrogate, per token.

    rho_t  = pi_t / mu_t
    loss_t = - min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t)

Source: Schulman et al., arXiv 1707.06347; separate bounds, arXiv 2503.14476.
"""

from __future__ import annotations

import jax.numpy as jnp

from zaya_jax.rl.losses.tokens import (
    PolicyLossConfig,
    PolicyTokens,
    TokenLosses,
    log_ratio,
    on_response,
)


def ppo_clip(tokens: PolicyTokens, config: PolicyLossConfig) -> TokenLosses:
    """Per-token losses; a token whose clipped side wins has a constant loss and is not kept."""
    ratio = jnp.exp(log_ratio(tokens))
    clipped = jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    plain, bounded = ratio * tokens.advantages, clipped * tokens.advantages
    return on_response(tokens, -jnp.minimum(plain, bounded), plain <= bounded)
