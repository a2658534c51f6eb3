"""The experts: one SwiGLU MLP for each class but the last, which skips."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from zaya_jax.config import ExpertDispatch, ModelConfig, RematPolicy
from zaya_jax.model import initialization
from zaya_jax.parallel.expert_parallel import experts_on_mesh


class Experts(nn.Module):
    """Applies to each token the expert that its router chose.

    Weights are stored (expert, out, in); rows 0..F-1 of `gate_up` are the gate, the rest the up
    projection.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch seq hidden"],
        class_index: Int[Array, "batch seq"],
        gate: Float[Array, "batch seq"],
    ) -> Float[Array, "batch seq hidden"]:
        """Gated expert outputs in the dtype of `x`; exactly zero for the skip class."""
        config = self.config
        experts, hidden = config.num_experts, config.hidden_size
        width = config.expert_intermediate_size
        gate_up = self.param(
            "gate_up",
            initialization.matrix(config),
            (experts, 2 * width, hidden),
            jnp.float32,
        )
        down = self.param(
            "down", initialization.output_matrix(config), (experts, hidden, width), jnp.float32
        )
        return experts_on_mesh(
            x,
            class_index,
            gate,
            gate_up,
            down,
            dispatch="dense" if config.expert_dispatch is ExpertDispatch.DENSE else "grouped",
            implementation=config.kernels.value,
            # Where layers are repeated, so is their gathering.
            gather_again=config.remat is RematPolicy.NONE,
        )
