"""DPPO Binary-TV: a trust region on the probability of each sampled token.

    Delta_t = pi_t - mu_t
    M_t     = 0 if A_t >  0 and Delta_t >  delta_high      (risen far enough already)
            = 0 if A_t <= 0 and Delta_t < -delta_low       (fallen far enough already)
            = 1 otherwise, equality included
    loss_t  = - A_t * sg(min(pi_t / mu_t, C)) * sg(M_t) * log pi_t

|Delta_t| is the total variation between the policies with the vocabulary collapsed to {y_t, the
rest}. Only updates that move further out are blocked; a token that is outside on the other side is
pulled back. mu_t is what the engine reported for the token, never a recomputed old policy. Beyond
C the gradient still flows, scaled by C.

Source: Qi et al., arXiv 2602.04879; delta = 0.1, arXiv 2605.05365. The report gives neither C nor
says that the ratio is kept; the ratio is kept here and C is large by default.
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


def dppo_binary_tv(tokens: PolicyTokens, config: PolicyLossConfig) -> TokenLosses:
    """Per-token losses; see the module."""
    log_pi = jax.lax.stop_gradient(tokens.log_probs)
    delta = jnp.exp(log_pi) - jnp.exp(tokens.rollout_log_probs)
    blocked = jnp.where(tokens.advantages > 0, delta > config.delta_high, delta < -config.delta_low)
    ratio = jnp.exp(jax.lax.stop_gradient(log_ratio(tokens)))
    weight = jnp.where(blocked, 0.0, jnp.minimum(ratio, config.ratio_cap))
    # Padding may hold any log-probability; a zero there keeps infinities out of the gradient.
    log_probs = jnp.where(tokens.mask, tokens.log_probs, 0.0)
    return on_response(tokens, -tokens.advantages * weight * log_probs, ~blocked)
