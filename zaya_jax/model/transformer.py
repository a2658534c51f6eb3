"""The ZAYA language model: embedding, scanned layers, final norm, LM head."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from zaya_jax.config import LayerLoop, LayerType, ModelConfig, RematPolicy
from zaya_jax.model import initialization
from zaya_jax.model.block import (
    LAYER_INPUT,
    Block,
    LayerCarry,
    LayerInput,
    LayerOutput,
    SharedInput,
    root_mean_square,
)
from zaya_jax.model.norm import RMSNorm
from zaya_jax.model.outputs import HiddenStates, Routing, TransformerOutput
from zaya_jax.model.rope import rope_tables
from zaya_jax.parallel.context_order import in_balanced_order, in_sequence_order
from zaya_jax.parallel.embedding import embed_on_mesh
from zaya_jax.variants import ResidualKind, RouterKind

# Token ids, positions or segment ids; host arrays are welcome.
TokenArray = Int[Array | np.ndarray, "batch seq"]
RouteArray = Int[Array | np.ndarray, "layers batch seq"]

# A window that no sequence reaches, for full layers in a model that also has sliding ones.
_NO_WINDOW = np.iinfo(np.int32).max


class Transformer(nn.Module):
    """A causal language model of the ZAYA family.

    Variables are `{"params": …, "balancing": {"biases": [layers, classes]}}`. Parameters are
    float32 and stacked over layers on their first axis; balancing biases are state that no loss
    gradient reaches.
    """

    config: ModelConfig

    def setup(self) -> None:
        """Declares the parameters that do not belong to a layer."""
        config = self.config
        shape = (config.vocab_size, config.hidden_size)
        width = (config.hidden_size,)
        matrix, ones, zeros = (
            initialization.matrix(config),
            initialization.ones,
            initialization.zeros,
        )
        self.embedding = self.param("embedding", matrix, shape, jnp.float32)
        if config.residual is ResidualKind.SCALED:
            self.input_scale = self.param("input_scale", ones, width, jnp.float32)
            self.input_bias = self.param("input_bias", zeros, width, jnp.float32)
        if config.num_layers > 1 and config.router is RouterKind.MLP_EDA:
            self.router_state_scale = self.param(
                "router_state_scale",
                ones,
                (config.num_layers - 1, config.router_hidden_size),
                jnp.float32,
            )
        self.final_norm = RMSNorm(config.rms_norm_epsilon, jnp.dtype(jnp.float32))
        if not config.tie_embeddings:
            self.head_weight = self.param("head_weight", matrix, shape, jnp.float32)
        if config.head_bias:
            self.head_bias = self.param("head_bias", zeros, (config.vocab_size,), jnp.float32)
        self.balancing_biases = self.variable(
            "balancing", "biases", initialization.balancing_biases, config
        )
        self.layers = _stacked_blocks(config)

    def __call__(
        self,
        tokens: TokenArray,
        *,
        positions: TokenArray | None = None,
        segment_ids: TokenArray | None = None,
        routes: RouteArray | None = None,
    ) -> TransformerOutput:
        """Next-token logits of every position.

        Args:
          tokens: token ids, each below `vocab_size`.
          positions: for RoPE; default 0, 1, 2, … in each row.
          segment_ids: 0 is padding, 1, 2, … are packed sequences that do not see each other;
            default one sequence per row.
          routes: router classes to replay instead of choosing, as `Routing.expert_index` reports
            them; -1 where the router is to choose (padding, a token nobody recorded).

        Raises:
          ValueError: for a sequence longer than `max_position_embeddings`, routes of another shape,
            and, outside `jit`, for a token id outside the vocabulary or a class that is none.
        """
        states = self.hidden_states(
            tokens, positions=positions, segment_ids=segment_ids, routes=routes
        )
        logits = head_logits(states.final, *self.head())
        return TransformerOutput(logits, states.routing)

    def hidden_states(
        self,
        tokens: TokenArray,
        *,
        positions: TokenArray | None = None,
        segment_ids: TokenArray | None = None,
        routes: RouteArray | None = None,
    ) -> HiddenStates:
        """Everything before the LM head; arguments and errors as for `__call__`."""
        config = self.config
        _check_tokens(tokens, config)
        _check_routes(routes, tokens, config)
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None, :], tokens.shape)
        tokens, positions = (in_balanced_order(jnp.asarray(x)) for x in (tokens, positions))
        if segment_ids is not None:
            segment_ids = in_balanced_order(jnp.asarray(segment_ids))
        if routes is not None:
            routes = in_balanced_order(jnp.asarray(routes, jnp.int32), axis=2)
        shared = _shared_input(config, positions, segment_ids)
        residual = embedded = embed_on_mesh(self.embedding, tokens)
        if config.residual is ResidualKind.SCALED:
            residual = (embedded + self.input_bias[None, None, :]) * self.input_scale[None, None, :]
        first_rms = root_mean_square(residual, shared.real_tokens)
        router_state = jnp.zeros((*tokens.shape, config.router_hidden_size), jnp.float32)
        carry, layers = self.layers(
            LayerCarry(residual, router_state), self._layer_inputs(routes), shared
        )
        return _collect(self.final_norm(carry.residual), first_rms, layers)

    def head(self) -> tuple[Float[Array, "vocab hidden"], Float[Array, "vocab"] | None]:
        """Weight and bias of the LM head, float32."""
        weight = self.embedding if self.config.tie_embeddings else self.head_weight
        return weight, self.head_bias if self.config.head_bias else None

    def _layer_inputs(self, routes: Array | None) -> LayerInput:
        config = self.config
        width = config.router_hidden_size
        # The first layer has no router before it: scale zero. Nor has any other without EDA.
        scales = [jnp.zeros((1, width), jnp.float32)]
        if config.num_layers > 1 and config.router is RouterKind.MLP_EDA:
            scales.append(self.router_state_scale)
        elif config.num_layers > 1:
            scales.append(jnp.zeros((config.num_layers - 1, width), jnp.float32))
        sliding = np.array([kind is LayerType.SLIDING for kind in config.layer_types])
        window = None
        if sliding.any():
            widths = np.where(sliding, config.sliding_window or 0, _NO_WINDOW)
            window = jnp.asarray(widths, jnp.int32)
        rope_index = sliding if sliding.any() and not sliding.all() else np.zeros_like(sliding)
        return LayerInput(
            router_state_scale=jnp.concatenate(scales, axis=0),
            balancing_biases=self.balancing_biases.value,
            rope_index=jnp.asarray(rope_index, jnp.int32),
            window=window,
            recorded_class=routes,
        )


def head_logits(
    final: Float[Array, "batch seq hidden"],
    weight: Float[Array, "vocab hidden"],
    bias: Float[Array, "vocab"] | None,
) -> Float[Array, "batch seq vocab"]:
    """The LM head, float32."""
    logits = jnp.einsum("bsh,vh->bsv", final, weight, preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias[None, None, :]


def _stacked_blocks(config: ModelConfig) -> Any:
    """All layers as one module whose parameters are stacked over layers."""
    block = Block
    if config.remat is not RematPolicy.NONE:
        block = nn.remat(
            Block,
            policy=_kept_for_backward(config.remat),
            prevent_cse=config.layer_loop is LayerLoop.UNROLL,
        )
    return nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast),
        length=config.num_layers,
        unroll=config.num_layers if config.layer_loop is LayerLoop.UNROLL else 1,
    )(config)


def _kept_for_backward(remat: RematPolicy) -> Any:
    """JAX's policy for a layer; None: its inputs, where they are."""
    policies = jax.checkpoint_policies
    if remat is RematPolicy.DOTS:
        return policies.dots_with_no_batch_dims_saveable
    if remat is RematPolicy.OFFLOAD:
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=[LAYER_INPUT],
            offload_src="device",
            offload_dst="pinned_host",
        )
    return None


def _shared_input(config: ModelConfig, positions: Array, segment_ids: Array | None) -> SharedInput:
    """RoPE tables for the kinds of layers that exist, full ones first, and the padding mask."""
    kinds = set(config.layer_types)
    thetas = [config.rope_theta] if LayerType.FULL in kinds else []
    thetas += [config.sliding_rope_theta] if LayerType.SLIDING in kinds else []
    tables = [rope_tables(positions, config.rotary_dim, theta) for theta in thetas]
    real = jnp.ones(positions.shape, jnp.float32)
    if segment_ids is not None:
        real = (segment_ids > 0).astype(jnp.float32)
    return SharedInput(
        cos=jnp.stack([cos for cos, _ in tables]),
        sin=jnp.stack([sin for _, sin in tables]),
        segment_ids=segment_ids,
        real_tokens=real,
    )


def _collect(final: Array, first_rms: Array, layers: LayerOutput) -> HiddenStates:
    """What is there of each token comes back in the order of the sequence."""
    return HiddenStates(
        final=in_sequence_order(final),
        routing=Routing(
            expert_index=in_sequence_order(layers.expert_index, axis=2),
            logits=in_sequence_order(layers.logits, axis=2),
            probabilities=in_sequence_order(layers.probabilities, axis=2),
            class_counts=layers.class_counts,
        ),
        residual_rms=jnp.concatenate([first_rms[None], layers.residual_rms]),
        per_layer=in_sequence_order(layers.residual, axis=2),
    )


def _check_tokens(tokens: TokenArray, config: ModelConfig) -> None:
    """Refuses sequences that are too long and, where values are known, foreign token ids."""
    if tokens.shape[1] > config.max_position_embeddings:
        raise ValueError(
            f"sequence of {tokens.shape[1]} tokens: the model accepts at most "
            f"max_position_embeddings={config.max_position_embeddings}; shorten it"
        )
    if isinstance(tokens, jax.core.Tracer) or tokens.size == 0:
        return
    values = np.asarray(tokens)
    lowest, highest = int(values.min()), int(values.max())
    if lowest < 0 or highest >= config.vocab_size:
        offender = lowest if lowest < 0 else highest
        raise ValueError(
            f"token id {offender} is outside the vocabulary 0..{config.vocab_size - 1}; "
            "check that the tokenizer belongs to this model"
        )


def _check_routes(routes: RouteArray | None, tokens: TokenArray, config: ModelConfig) -> None:
    """Refuses routes of the wrong shape and, where values are known, classes that do not exist."""
    if routes is None:
        return
    expected = (config.num_layers, *tokens.shape)
    if config.experts_per_token > 1:
        raise ValueError("routes hold one class a token; this model chooses several")
    if routes.shape != expected:
        raise ValueError(f"routes {routes.shape}: must be [layers, batch, seq] = {expected}")
    if isinstance(routes, jax.core.Tracer) or routes.size == 0:
        return
    values = np.asarray(routes)
    lowest, highest = int(values.min()), int(values.max())
    if lowest < -1 or highest > config.num_experts:
        offender = lowest if lowest < -1 else highest
        raise ValueError(
            f"route {offender}: router classes are 0..{config.num_experts} and -1 (choose live)"
        )
