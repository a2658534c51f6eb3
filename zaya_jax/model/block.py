"""One layer: attention, then experts, each behind a norm and a residual addition."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from zaya_jax.config import ModelConfig
from zaya_jax.model.attention import attention_block
from zaya_jax.model.experts import Experts
from zaya_jax.model.norm import ResidualScale, RMSNorm, add_and_norm
from zaya_jax.model.router import Router, RouterOutput
from zaya_jax.parallel.mesh import split_activations

LAYER_INPUT = "layer_input"  # what rematerialisation calls the state carried into a layer


class LayerCarry(NamedTuple):
    """What travels from layer to layer, both float32."""

    residual: Float[Array, "batch seq hidden"]
    router_state: Float[Array, "batch seq router_hidden"]


class LayerInput(NamedTuple):
    """What differs between layers besides their parameters; scanned over its first axis."""

    router_state_scale: Float[Array, "*layers router_hidden"]
    balancing_biases: Float[Array, "*layers classes"]
    rope_index: Int[Array, "*layers"]  # which of the RoPE tables
    window: Int[Array, "*layers"] | None  # keys that attention sees; None: all
    recorded_class: Int[Array, "*layers batch seq"] | None  # choices to replay; None: route live


class SharedInput(NamedTuple):
    """What is the same for all layers."""

    cos: Float[Array, "tables batch seq half_rotary"]
    sin: Float[Array, "tables batch seq half_rotary"]
    segment_ids: Int[Array, "batch seq"] | None
    real_tokens: Float[Array, "batch seq"]  # 1 for a token, 0 for padding


class LayerOutput(NamedTuple):
    """What a layer reports; stacked over layers by the scan."""

    expert_index: Int[Array, "*layers batch seq"]
    logits: Float[Array, "*layers batch seq classes"]
    probabilities: Float[Array, "*layers batch seq classes"]
    class_counts: Float[Array, "*layers classes"]
    residual_rms: Float[Array, "*layers"]
    residual: Float[Array, "*layers batch seq hidden"]  # the stream after the layer


class Block(nn.Module):
    """The body of the scan over layers."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, carry: LayerCarry, layer: LayerInput, shared: SharedInput
    ) -> tuple[LayerCarry, LayerOutput]:
        """Runs one layer on the carried state."""
        carry = LayerCarry(*(checkpoint_name(array, LAYER_INPUT) for array in carry))
        attention: Any = attention_block(self.config)
        attended = attention(self.config, name="attention")(
            self._norm("attention_norm")(carry.residual),
            cos=shared.cos[layer.rope_index],
            sin=shared.sin[layer.rope_index],
            segment_ids=shared.segment_ids,
            window=layer.window,
        )
        residual, x = add_and_norm(
            ResidualScale(self.config.residual, name="attention_residual"),
            self._norm("expert_norm"),
            attended,
            carry.residual,
            implementation=self.config.kernels.value,
        )
        routed = Router(self.config, name="router")(
            x,
            previous_state=carry.router_state,
            state_scale=layer.router_state_scale,
            balancing_biases=layer.balancing_biases,
            recorded_class=layer.recorded_class,
        )
        experts = Experts(self.config, name="experts")
        expert_output = experts(x, routed.class_index, routed.gate)
        for choice in routed.further:
            expert_output = expert_output + experts(x, choice.class_index, choice.gate)
        scale = ResidualScale(self.config.residual, name="expert_residual")
        residual = scale(expert_output, residual)
        residual = split_activations(residual)
        return LayerCarry(residual, routed.state), self._report(routed, residual, shared)

    def _norm(self, name: str) -> RMSNorm:
        dtype = jnp.dtype(self.config.activation_dtype)
        return RMSNorm(self.config.rms_norm_epsilon, dtype, name=name)

    def _report(self, routed: RouterOutput, residual: Array, shared: SharedInput) -> LayerOutput:
        chosen = nn.one_hot(routed.class_index, self.config.num_router_classes, dtype=jnp.float32)
        for choice in routed.further:
            chosen = chosen + nn.one_hot(choice.class_index, chosen.shape[-1], dtype=jnp.float32)
        return LayerOutput(
            expert_index=routed.class_index,
            logits=routed.logits,
            probabilities=routed.probabilities,
            class_counts=jnp.einsum("bsc,bs->c", chosen, shared.real_tokens),
            residual_rms=root_mean_square(residual, shared.real_tokens),
            residual=residual,
        )


def root_mean_square(
    x: Float[Array, "batch seq channels"], weights: Float[Array, "batch seq"]
) -> Float[Array, ""]:
    """Root of the mean square over the tokens of weight 1."""
    token_means = jnp.mean(jnp.square(x), axis=-1)
    return jnp.sqrt(jnp.sum(token_means * weights) / jnp.maximum(jnp.sum(weights), 1.0))
