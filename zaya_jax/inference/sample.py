"""Sampling by running the whole window for every token: simple, exact, and slow.

For short continuations while training. Everything else wants a cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from zaya_jax.config import ModelConfig
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.text import allowed_tokens
from zaya_jax.model.transformer import Transformer


def sample_text(
    config: ModelConfig,
    variables: dict[str, Any],
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_tokens: int,
    rng: UInt32[Array, " 2"],
    temperature: float = 0.8,
    top_p: float = 0.95,
) -> str:
    """Continues a prompt until the end of the document or `max_tokens`; returns the new text.

    Ids that the tokenizer does not have, padding and bos are never drawn.

    Args:
      config: architecture of the model.
      variables: its parameters and balancing biases.
      tokenizer: turns text into ids and back.
      prompt: may be empty.
      max_tokens: most tokens to add; prompt and continuation must fit the model's positions.
      rng: key data.
      temperature: 0 takes the most likely token.
      top_p: the least set of most likely tokens whose probabilities reach this is drawn from.

    Raises:
      ValueError: when prompt and continuation are longer than `max_position_embeddings`.
    """
    prompt_ids = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    length = len(prompt_ids) + max_tokens
    if length > config.max_position_embeddings:
        raise ValueError(
            f"prompt of {len(prompt_ids)} tokens and max_tokens={max_tokens} exceed "
            f"max_position_embeddings={config.max_position_embeddings}"
        )
    allowed = allowed_tokens(config, tokenizer)
    window = np.full((1, length), tokenizer.pad_id, np.int32)
    window[0, : len(prompt_ids)] = prompt_ids
    end = len(prompt_ids)
    while end < length:
        token = int(
            _next_token(
                config, variables, window, end, allowed, rng, temperature=temperature, top_p=top_p
            )
        )
        if token == tokenizer.eos_id:
            break
        window[0, end] = token
        end += 1
    return _decode(tokenizer, window[0, len(prompt_ids) : end].tolist())


@functools.partial(jax.jit, static_argnums=0, static_argnames=("temperature", "top_p"))
def _next_token(
    config: ModelConfig,
    variables: dict[str, Any],
    window: Int[Array, "1 seq"],
    end: Int[Array, ""] | int,
    allowed: Bool[Array, " vocab"],
    rng: UInt32[Array, " 2"],
    *,
    temperature: float,
    top_p: float,
) -> Int[Array, ""]:
    """Draws the token at position `end`; what stands in the window from there on is not seen."""
    real = (jnp.arange(window.shape[1]) < end).astype(jnp.int32)[None, :]
    states: Any = Transformer(config).apply(
        variables, window, segment_ids=real, method=Transformer.hidden_states
    )
    head: Any = Transformer(config).apply(variables, method=Transformer.head)
    weight, bias = head
    last = jax.lax.dynamic_index_in_dim(states.final[0], end - 1, keepdims=False)
    logits = jnp.einsum("h,vh->v", last, weight, preferred_element_type=jnp.float32)
    if bias is not None:
        logits = logits + bias
    logits = jnp.where(allowed, logits, -jnp.inf)
    if temperature == 0:
        return jnp.argmax(logits)
    key = jax.random.fold_in(jax.random.wrap_key_data(rng), end)
    return jax.random.categorical(key, keep_top_p(logits / temperature, top_p))


def keep_top_p(logits: Float[Array, " vocab"], top_p: float) -> Float[Array, " vocab"]:
    """Minus infinity for all but the most likely entries that together reach `top_p`."""
    probabilities = jax.nn.softmax(logits)
    descending = jnp.sort(probabilities)[::-1]
    before = jnp.cumsum(descending) - descending  # mass of the entries that are more likely
    reached = jnp.where(before < top_p, descending, jnp.inf)
    least = jnp.minimum(jnp.min(reached), descending[0])  # the most likely one always stays
    return jnp.where(probabilities >= least, logits, -jnp.inf)


def _decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids)
