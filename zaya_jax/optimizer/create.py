"""The optimiser that a run's settings ask for."""

from __future__ import annotations

import optax

from zaya_jax.optimizer.adamw import adamw
from zaya_jax.optimizer.muon import muon
from zaya_jax.optimizer.settings import OptimizerConfig, OptimizerKind


def create_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """The transformation from gradients to parameter updates.

    Raises:
      ConfigError: when the schedule does not fit into `total_steps`, and for kernels that cannot
        run here.
    """
    create = muon if config.kind is OptimizerKind.MUON else adamw
    return create(config, total_steps)
