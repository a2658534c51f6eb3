"""Advantages of whole groups of rollouts, by name.

Every function maps `RewardGroups` to an array [groups, size]. To add one: a file here, and a line
below; or give `package.module:function` in the config.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zaya_jax.rl.advantages.dr_grpo import dr_grpo
from zaya_jax.rl.advantages.groups import RewardGroups
from zaya_jax.rl.advantages.grpo import grpo
from zaya_jax.rl.advantages.maxrl import maxrl, maxrl_shaped_baseline
from zaya_jax.rl.advantages.rloo import rloo
from zaya_jax.rl.registry import Registry

AdvantageFunction = Callable[[RewardGroups], np.ndarray]

ADVANTAGES: Registry[AdvantageFunction] = Registry("advantage")
ADVANTAGES.register("maxrl", maxrl)
ADVANTAGES.register("maxrl_shaped_baseline", maxrl_shaped_baseline)
ADVANTAGES.register("grpo", grpo)
ADVANTAGES.register("dr_grpo", dr_grpo)
ADVANTAGES.register("rloo", rloo)
