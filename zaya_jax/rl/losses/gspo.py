"""GSPO: PPO's clipping on the length-normalised ratio of the whole sequence.

    s_i    = exp(mean over the response of (log pi_t - log mu_t))
    loss_t = - min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)       the same at every token t of i

With `seq_mean_token_mean` the sum is the published objective. Usual bounds are far tighter than
PPO's: 3e-4 and 4e-4. Source: Zheng et al., arXiv 2507.18071.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zaya_jax.rl.losses.tokens import (
    PolicyLossConfig,
    PolicyTokens,
    TokenLosses,
    log_ratio,
    on_response,
)


def gspo(tokens: PolicyTokens, config: PolicyLossConfig) -> TokenLosses:
    """Per-token losses; all tokens of a sequence are kept, or none."""
    ratio = jnp.exp(sequence_mean(tokens, log_ratio(tokens)))
    clipped = jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    plain, bounded = ratio * tokens.advantages, clipped * tokens.advantages
    return on_response(tokens, -jnp.minimum(plain, bounded), plain <= bounded)


def sequence_mean(
    tokens: PolicyTokens, values: Float[Array, "batch seq"]
) -> Float[Array, "batch seq"]:
    """Mean over the response tokens of each packed sequence, spread over its tokens."""
    batch, seq = values.shape
    groups = jnp.arange(batch)[:, None] * (seq + 1) + tokens.segment_ids
    weight = tokens.mask.astype(values.dtype)

    def total(x: Array) -> Array:
        flat = jax.ops.segment_sum(x.reshape(-1), groups.reshape(-1), batch * (seq + 1))
        return flat[groups]

    return total(values * weight) / jnp.maximum(total(weight), 1.0)
