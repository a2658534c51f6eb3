"""How every parameter starts when a model is trained from scratch.

| tensor | start |
| --- | --- |
| embedding, untied head | truncated normal, `initializer_stddev` |
| query, key, value and expert gate/up matrices | truncated normal, `initializer_stddev` |
| router down-projection | the same; its scale vanishes in the router's norm |
| what scores classes | truncated normal of 1 / sqrt(inputs) if fan-in, else `initializer_stddev` |
| attention output, expert down | the same over sqrt(2 * layers), if depth-scaled |
| convolution taps | truncated normal, `initializer_stddev`: q and k start as their means |
| key temperature | 1: keys as long as queries (0, as in transformers, silences keys) |
| norm weights, residual, input and router state scales | 1 |
| every bias | 0 |
| balancing biases | 0 for experts, `skip_class_bias` for the skip class |

Truncation is at two standard deviations, with the stated deviation being that of the untruncated
normal divided by its shrinkage, so the samples' own standard deviation is as configured.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from zaya_jax.config import ModelConfig, OutputInit, RouterInit

# Standard deviation of a unit normal truncated to [-2, 2].
_TRUNCATION_SHRINKAGE = 0.87962566103423978


def matrix(config: ModelConfig) -> nn.initializers.Initializer:
    """For matrices that read from the residual stream, and for convolutions."""
    return nn.initializers.truncated_normal(config.initializer_stddev / _TRUNCATION_SHRINKAGE)


def output_matrix(config: ModelConfig) -> nn.initializers.Initializer:
    """For matrices that write into the residual stream."""
    stddev = config.initializer_stddev
    if config.output_init is OutputInit.DEPTH_SCALED:
        stddev = stddev / (2 * config.num_layers) ** 0.5
    return nn.initializers.truncated_normal(stddev / _TRUNCATION_SHRINKAGE)


def router_matrix(config: ModelConfig, inputs: int) -> nn.initializers.Initializer:
    """For the router's scoring matrices that read `inputs` channels."""
    if config.router_init is RouterInit.PLAIN:
        return matrix(config)
    return nn.initializers.truncated_normal(inputs**-0.5 / _TRUNCATION_SHRINKAGE)


def balancing_biases(config: ModelConfig) -> Float[Array, "layers classes"]:
    """The starting balancing biases, float32: 0 for experts, `skip_class_bias` for the last."""
    biases = jnp.zeros((config.num_layers, config.num_router_classes), jnp.float32)
    return biases.at[:, -1].set(config.skip_class_bias)


ones = jax.nn.initializers.ones
zeros = jax.nn.initializers.zeros
