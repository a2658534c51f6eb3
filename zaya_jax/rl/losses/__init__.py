"""Policy losses per token, by name.

Every function maps `(PolicyTokens, PolicyLossConfig)` to `TokenLosses`. To add one: a file here, a
member of `LossKind` and a line below; or give `package.module:function` in the config.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from zaya_jax.rl.losses.cispo import cispo
from zaya_jax.rl.losses.dppo import dppo_binary_tv
from zaya_jax.rl.losses.gspo import gspo
from zaya_jax.rl.losses.ppo import ppo_clip
from zaya_jax.rl.losses.tokens import PolicyLossConfig, PolicyTokens, TokenLosses
from zaya_jax.rl.registry import Registry

LossFunction = Callable[[PolicyTokens, PolicyLossConfig], TokenLosses]


class LossKind(enum.StrEnum):
    """The built-in losses."""

    DPPO_BINARY_TV = "dppo_binary_tv"  # ZAYA1's: trust region on probabilities
    PPO_CLIP = "ppo_clip"  # clipped ratio per token
    GSPO = "gspo"  # clipped ratio per sequence
    CISPO = "cispo"  # clipped importance weight, every token keeps a gradient


LOSSES: Registry[LossFunction] = Registry("policy loss")
LOSSES.register(LossKind.DPPO_BINARY_TV, dppo_binary_tv)
LOSSES.register(LossKind.PPO_CLIP, ppo_clip)
LOSSES.register(LossKind.GSPO, gspo)
LOSSES.register(LossKind.CISPO, cispo)
