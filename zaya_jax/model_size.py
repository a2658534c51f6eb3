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
from zaya_jax.variants import AttentionKind, Convolutions, ResidualKind, RouterKind, SkipClass


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
    scaling = 8 if config.residual is ResidualKind.SCALED else 0
    return LayerParameters(
        attention=_attention_parameters(config),
        router=_router_parameters(config),
        expert=3 * config.hidden_size * config.expert_intermediate_size,
        vectors=(2 + scaling) * config.hidden_size,
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
    hidden = config.hidden_size
    experts = config.experts_per_token * 3 * hidden * config.expert_intermediate_size
    of_layer = _attention_matrices(config) + _convolution_products(config)
    of_layer += _router_matrices(config) + experts
    multiplies: float = config.num_layers * of_layer
    for layer_type in config.layer_types:
        window = config.sliding_window if layer_type is LayerType.SLIDING else None
        multiplies += 2 * config.query_size * _mean_keys(seq_len, window)
    multiplies += hidden * config.vocab_size
    return 2.0 * multiplies


def training_flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Forward and backward FLOPs per token: three times the forward count."""
    return 3.0 * flops_per_token(config, seq_len)


def cached_numbers_per_token(config: ModelConfig) -> int:
    """Numbers that decoding keeps of a token in a layer, however long the sequence is.

    Keys and values; with MLA the latent they come from and the keys' rotated part. What CCA keeps
    once per sequence is not counted.
    """
    if config.attention is AttentionKind.MLA:
        return (config.kv_latent_size or 0) + config.rotary_dim
    return 2 * config.kv_size


def _attention_matrices(config: ModelConfig) -> int:
    """Numbers in one layer's projections."""
    hidden, query, kv = config.hidden_size, config.query_size, config.kv_size
    if config.attention is not AttentionKind.MLA:
        return hidden * (query + 2 * kv) + query * hidden
    latent, query_latent = config.kv_latent_size or 0, config.query_latent_size
    up = latent * (query - config.num_query_heads * config.rotary_dim) + latent * query
    down = hidden * (latent + config.rotary_dim)
    query_matrices = hidden * query
    if query_latent is not None:
        query_matrices = (hidden + query) * query_latent
    return query_matrices + down + up + query * hidden


def _convolution_products(config: ModelConfig) -> int:
    """Multiplications of one layer's convolutions for a token, and numbers in their taps."""
    if config.attention is not AttentionKind.CCA or config.convolutions is Convolutions.NONE:
        return 0
    channels = config.query_size + config.kv_size
    depthwise = channels * config.depthwise_conv_width
    if config.convolutions is Convolutions.DEPTHWISE:
        return depthwise
    return depthwise + channels * config.head_dim * config.grouped_conv_width


def _attention_parameters(config: ModelConfig) -> int:
    count = _attention_matrices(config) + _convolution_products(config)
    query, kv, hidden = config.query_size, config.kv_size, config.hidden_size
    latents = (config.kv_latent_size or 0) + (config.query_latent_size or 0)
    count += latents  # norms
    if config.attention is AttentionKind.CCA:
        convolutions = {Convolutions.BOTH: 2, Convolutions.DEPTHWISE: 1, Convolutions.NONE: 0}
        count += convolutions[config.convolutions] * (query + kv)  # biases
        count += config.num_kv_heads  # temperatures
    if config.attention_bias and config.attention is AttentionKind.MLA:
        not_rotated = query - config.num_query_heads * config.rotary_dim
        count += latents + config.rotary_dim + not_rotated + 2 * query + hidden
    elif config.attention_bias:
        count += query + 2 * kv + hidden
    return count


def _router_matrices(config: ModelConfig) -> int:
    """Numbers in one layer's router's matrices."""
    hidden, width = config.hidden_size, config.router_hidden_size
    classes = config.num_experts + (config.skip_class is SkipClass.ZERO)
    if config.router is RouterKind.LINEAR:
        return hidden * classes
    return hidden * width + 2 * width * width + width * classes


def _router_parameters(config: ModelConfig) -> int:
    count = _router_matrices(config) + config.num_router_classes  # balancing biases
    if config.router is RouterKind.LINEAR:
        return count
    count += 4 * config.router_hidden_size  # biases of three matrices, norm
    return count + (config.router_hidden_size if config.router is RouterKind.MLP_EDA else 0)


def _mean_keys(seq_len: int, window: int | None) -> float:
    """Mean over positions of the keys that a query meets, its own included."""
    if window is None or window >= seq_len:
        return (seq_len + 1) / 2
    return (window * (window + 1) / 2 + (seq_len - window) * window) / seq_len


def _outside_layers(config: ModelConfig, embedding: bool) -> int:
    count = config.hidden_size  # final norm
    if config.residual is ResidualKind.SCALED:
        count += 2 * config.hidden_size  # input scale and bias
    if config.router is RouterKind.MLP_EDA:
        count -= config.router_hidden_size  # the first layer's router has no state scale
    tables = 1 if config.tie_embeddings else 2
    if embedding:
        count += tables * config.vocab_size * config.hidden_size
    if config.head_bias:
        count += config.vocab_size
    return count
