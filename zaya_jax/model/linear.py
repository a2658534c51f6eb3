"""A linear layer whose weight is stored (out_features, in_features).

That is how the released tensors lie, so conversion copies bytes, and the reduced axis is the
contiguous one, which matrix cores read best.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from zaya_jax.model import initialization


class Linear(nn.Module):
    """`x @ weight.T + bias`; products accumulate in float32."""

    features: int  # output channels
    use_bias: bool
    kernel_init: nn.initializers.Initializer
    dtype: jnp.dtype  # of the operands
    output_dtype: jnp.dtype | None = None  # None: the operands' dtype

    @nn.compact
    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        """Applies the layer along the last axis."""
        weight = self.param("weight", self.kernel_init, (self.features, x.shape[-1]), jnp.float32)
        output = jax.lax.dot_general(
            x.astype(self.dtype),
            weight.astype(self.dtype),
            (((x.ndim - 1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        if self.use_bias:
            bias = self.param("bias", initialization.zeros, (self.features,), jnp.float32)
            output = output + bias.reshape((1,) * (output.ndim - 1) + bias.shape)
        return output.astype(self.output_dtype or self.dtype)
