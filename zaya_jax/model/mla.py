"""Multi-head latent attention (MLA): keys and values of all heads come from one small vector.

With D channels a head, of which R carry RoPE:

    c_q = RMSNorm(W_dq x)                      queries' latent; x itself where there is none
    c   = RMSNorm(W_dkv x)                     keys' and values' latent, `kv_latent_size` channels
    k^R = RoPE(W_kr x)                         R channels, the same for every head
    k_i = [k^R, W_uk,i c],   v_i = W_uv,i c    D - R and D channels
    q_i = [RoPE(W_qr,i c_q), W_qn,i c_q]
    o   = W_o [softmax(q_i . k_i / sqrt(D)) v_i]_i

(arXiv 2405.04434, Sec. 2.1, equations 9 to 19; R comes first in a head here.) Decoding would keep c
and k^R: `kv_latent_size` + R numbers a token and layer.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from kernels_pallas.attention import causal_attention
from kernels_pallas.cca import apply_rope
from zaya_jax.config import ModelConfig
from zaya_jax.model.norm import RMSNorm
from zaya_jax.model.projection import output_projection, projection


class LatentAttention(nn.Module):
    """The attention block of DeepSeek-V2, in the form that training uses."""

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
        heads, head_dim, rotary = config.num_query_heads, config.head_dim, config.rotary_dim

        def split(projected: Array) -> Float[Array, "batch seq heads channels"]:
            # [batch, seq, heads * channels] -> [batch, seq, heads, channels]
            return projected.reshape(*x.shape[:2], -1, projected.shape[-1] // heads)

        query_input = x
        if config.query_latent_size is not None:
            query_input = self._latent("query", config.query_latent_size, x)
        latent = self._latent("kv", config.kv_latent_size or 0, x)
        # RoPE turns the first R channels of a head and lets the rest pass.
        query = split(projection(config, "query_up", heads * head_dim)(query_input))
        query = apply_rope(query, cos, sin).astype(query.dtype)
        shared = projection(config, "key_rotary", rotary)(x)[:, :, None, :]
        shared = apply_rope(shared, cos, sin).astype(shared.dtype)
        own = split(projection(config, "key_up", heads * (head_dim - rotary))(latent))
        key = jnp.concatenate([jnp.broadcast_to(shared, (*own.shape[:3], rotary)), own], axis=-1)
        attended = causal_attention(
            query,
            key,
            split(projection(config, "value_up", heads * head_dim)(latent)),
            segment_ids=segment_ids,
            window=window,
            implementation=config.kernels.value,
        )
        # [batch, seq, heads, head_dim] -> [batch, seq, heads * head_dim]
        return output_projection(config)(attended.reshape(*x.shape[:2], config.query_size))

    def _latent(self, name: str, channels: int, x: Array) -> Float[Array, "batch seq channels"]:
        latent = projection(self.config, f"{name}_down", channels)(x)
        dtype = jnp.dtype(self.config.activation_dtype)
        return RMSNorm(self.config.rms_norm_epsilon, dtype, name=f"{name}_latent_norm")(latent)
