"""Which attention block a config asks for. All take the same arguments."""

from __future__ import annotations

from flax import linen as nn

from zaya_jax.config import ModelConfig
from zaya_jax.model.cca import CCAAttention
from zaya_jax.model.cca_parts import PartialCCAAttention
from zaya_jax.model.gqa import GroupedQueryAttention
from zaya_jax.model.mla import LatentAttention
from zaya_jax.variants import AttentionKind, Convolutions, QueryKeyMean, ValuePath


def attention_block(config: ModelConfig) -> type[nn.Module]:
    """The module's class; construct it with the config."""
    if config.attention is AttentionKind.GQA:
        return GroupedQueryAttention
    if config.attention is AttentionKind.MLA:
        return LatentAttention
    is_whole = (
        config.convolutions is Convolutions.BOTH
        and config.query_key_mean is QueryKeyMean.GROUP
        and config.value_path is ValuePath.DELAYED_HALF
    )
    return CCAAttention if is_whole else PartialCCAAttention
