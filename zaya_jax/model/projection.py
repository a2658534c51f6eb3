"""The linear layers of attention blocks."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn

from zaya_jax.config import ModelConfig
from zaya_jax.model import initialization
from zaya_jax.model.linear import Linear


def projection(
    config: ModelConfig,
    name: str,
    features: int,
    kernel_init: nn.initializers.Initializer | None = None,
) -> Linear:
    """A projection in the activation dtype, with a bias where the config has them.

    Call it inside a compact method, whose module then owns the layer.
    """
    return Linear(
        features=features,
        use_bias=config.attention_bias,
        kernel_init=kernel_init or initialization.matrix(config),
        dtype=jnp.dtype(config.activation_dtype),
        name=name,
    )


def output_projection(config: ModelConfig) -> Linear:
    """The projection back into the residual stream."""
    return projection(config, "output", config.hidden_size, initialization.output_matrix(config))
