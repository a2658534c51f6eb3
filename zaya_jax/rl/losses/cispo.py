"""CISPO: the importance weight is clipped and detached, so that every token keeps a gradient.

    loss_t = - sg(clip(pi_t / mu_t, 1 - low, 1 + high)) * A_t * log pi_t

Source: MiniMax, arXiv 2506.13585.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from zaya_jax.rl.losses.tokens import (
    PolicyLossConfig,
    PolicyTokens,
    TokenLosses,
    log_ratio,
    on_response,
)


def cispo(tokens: PolicyTokens, config: PolicyLossConfig) -> TokenLosses:
    """Per-token losses; every token is kept."""
    ratio = jnp.exp(jax.lax.stop_gradient(log_ratio(tokens)))
    weight = jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    log_probs = jnp.where(tokens.mask, tokens.log_probs, 0.0)
    return on_response(tokens, -weight * tokens.advantages * log_probs, tokens.mask)
