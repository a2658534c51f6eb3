"""What a forward pass returns."""

from __future__ import annotations

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@flax.struct.dataclass
class Routing:
    """Where every token went, and why. Class `num_experts` is the skip class.

    Attributes:
      expert_index: chosen class.
      logits: router outputs before the softmax, float32.
      probabilities: softmax over all classes, without the balancing biases, float32.
      class_counts: real (not padding) tokens that chose each class, float32.
    """

    expert_index: Int[Array, "layers batch seq"]
    logits: Float[Array, "layers batch seq classes"]
    probabilities: Float[Array, "layers batch seq classes"]
    class_counts: Float[Array, "layers classes"]

    @property
    def load(self) -> Float[Array, "layers classes"]:
        """Share of the real tokens that chose each class; rows sum to 1."""
        total = jnp.sum(self.class_counts, axis=-1, keepdims=True)
        return self.class_counts / jnp.maximum(total, 1.0)


@flax.struct.dataclass
class HiddenStates:
    """The model's state before the LM head.

    Attributes:
      final: output of the final norm, float32.
      routing: see `Routing`.
      residual_rms: root mean square of the residual stream over real tokens, before the first
        layer and after each layer.
      per_layer: the residual stream after each layer, float32; costs nothing under `jit` if unused.
    """

    final: Float[Array, "batch seq hidden"]
    routing: Routing
    residual_rms: Float[Array, "depth"]
    per_layer: Float[Array, "layers batch seq hidden"]


@flax.struct.dataclass
class TransformerOutput:
    """Logits and routing of one forward pass.

    Attributes:
      logits: next-token logits, float32.
      routing: see `Routing`.
    """

    logits: Float[Array, "batch seq vocab"]
    routing: Routing
