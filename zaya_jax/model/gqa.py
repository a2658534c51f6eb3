"""Grouped-query attention: every KV head serves a group of query heads.

    q_i = RoPE(W_q,i x),   k_g = RoPE(W_k,g x),   v_g = W_v,g x
    o   = W_o [softmax(q_i . k_g(i) / sqrt(head_dim)) v_g(i)]_i

(arXiv 2305.13245.) With as many KV heads as query heads it is multi-head attention. No norm of
queries and keys, as in the original. It keeps 2 * kv_heads * head_dim numbers a token and layer.
"""

from __future__ import annotations

from flax import linen as nn
from jaxtyping import Array, Float, Int

from kernels_pallas.attention import causal_attention
from kernels_pallas.cca import apply_rope
from zaya_jax.config import ModelConfig
from zaya_jax.model.projection import output_projection, projection


class GroupedQueryAttention(nn.Module):
    """The attention block of most transformers."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch seq hidden"],
        *,
        cos: Float[Array, "batch seq half_rotary"],
        sin: Float[Array, "batch seq half_rotary"],
        segment_ids: Int[Array, "batch seq"] | None,
        window: Int[Array, ""] | None,
    ) -> Float[Array, "batch seq hidden"]:
        """The block's output, not yet added to the residual stream."""
        config = self.config

        def heads(name: str, count: int) -> Float[Array, "batch seq heads head_dim"]:
            projected = projection(config, name, count * config.head_dim)(x)
            # [batch, seq, heads * head_dim] -> [batch, seq, heads, head_dim]
            return projected.reshape(*x.shape[:2], count, config.head_dim)

        query, key = heads("query", config.num_query_heads), heads("key", config.num_kv_heads)
        attended = causal_attention(
            apply_rope(query, cos, sin).astype(query.dtype),
            apply_rope(key, cos, sin).astype(key.dtype),
            heads("value", config.num_kv_heads),
            segment_ids=segment_ids,
            window=window,
            implementation=config.kernels.value,
        )
        # [batch, seq, query_heads, head_dim] -> [batch, seq, query_heads * head_dim]
        return output_projection(config)(attended.reshape(*x.shape[:2], config.query_size))
