"""Parameter and FLOP counts of a geometry, in closed form.

Conventions. A FLOP count is of matrix products only, two FLOPs per multiply and add, forward, for
one token: projections, both convolutions, router, one expert, attention scores and values, and the
LM head. Looking up the embedding, norms, softmaxes and elementwise work are left out. Attention is
counted causally: a token at position t meets t + 1 keys (fewer in a window), averaged over the
sequence. Training costs three times the forward count, whatever is recomputed; model FLOP
utilisation (MFU) divides that by the device's peak. The skip class is not credited.
"""

from __future__ import annotations

import dataclasses

from zaya_jax.config import LayerType, ModelConfig


@dataclasses.dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer after the first, by part."""

    attention: int
    router: int
    expert: int  # of one expert
    vectors: int  # norms and residual scales

    def total(self, experts: int) -> int:
        """With that many experts counted."""
        return self.attention + self.router + experts * self.expert + self.vectors


def layer_parameters(config: ModelConfig) -> LayerParameters:
    """Counts of one layer, balancing biases among the router's."""
    hidden, width = config.hidden_size, config.router_hidden_size
    channels = config.query_size + config.kv_size
    attention = hidden * (config.query_size + 2 * config.kv_size) + config.query_size * hidden
    attention += channels * (config.depthwise_conv_width + 1)
    attention += channels * (config.head_dim * config.grouped_conv_width + 1)
    attention += config.num_kv_heads
    if config.attention_bias:
        attention += config.query_size + 2 * config.kv_size + hidden
    router = (hidden + 1) * width  # down-projection
    router += width  # scale of the previous layer's state; the first layer has none
    router += width + 2 * (width + 1) * width + config.num_router_classes * width  # norm, MLP
    router += config.num_router_classes  # balancing biases
    return LayerParameters(
        attention=attention,
        router=router,
        expert=3 * hidden * config.expert_intermediate_size,
        vectors=2 * hidden + 8 * hidden,
    )


def parameter_count(config: ModelConfig, *, embedding: bool = True) -> int:
    """All stored numbers of the model: parameters and balancing biases, as in a released file.

    `embedding=False` leaves out the embedding table and an untied head.
    """
    count = config.num_layers * layer_parameters(config).total(config.num_experts)
    return count + _outside_layers(config, embedding)


def active_parameter_count(config: ModelConfig, *, embedding: bool = False) -> int:
    """Numbers that take part in one token: as `parameter_count`, with the chosen experts only."""
    count = config.num_layers * layer_parameters(config).total(config.experts_per_token)
    return count + _outside_layers(config, embedding)


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Forward FLOPs per token, averaged over a sequence of `seq_len` tokens."""
    hidden, width = config.hidden_size, config.router_hidden_size
    channels = config.query_size + config.kv_size
    projections = hidden * (config.query_size + 2 * config.kv_size) + config.query_size * hidden
    convolutions = channels * config.depthwise_conv_width
    convolutions += channels * config.head_dim * config.grouped_conv_width
    router = hidden * width + 2 * width * width + width * config.num_router_classes
    experts = config.experts_per_token * 3 * hidden * config.expert_intermediate_size
    multiplies: float = config.num_layers * (projections + convolutions + router + experts)
    for layer_type in config.layer_types:
        window = config.sliding_window if layer_type is LayerType.SLIDING else None
        multiplies += 2 * config.query_size * _mean_keys(seq_len, window)
    multiplies += hidden * config.vocab_size
    return 2.0 * multiplies


def training_flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Forward and backward FLOPs per token: three times the forward count."""
    return 3.0 * flops_per_token(config, seq_len)


def _mean_keys(seq_len: int, window: int | None) -> float:
    """Mean over positions of the keys that a query meets, its own included."""
    if window is None or window >= seq_len:
        return (seq_len + 1) / 2
    return (window * (window + 1) / 2 + (seq_len - window) * window) / seq_len


def _outside_layers(config: ModelConfig, embedding: bool) -> int:
    count = 3 * config.hidden_size  # input scale and bias, final norm
    count -= config.router_hidden_size  # the first layer's router has no state scale
    tables = 1 if config.tie_embeddings else 2
    if embedding:
        count += tables * config.vocab_size * config.hidden_size
    if config.head_bias:
        count += config.vocab_size
    return count
