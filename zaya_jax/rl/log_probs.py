"""Log-probabilities of given tokens under the trained policy, without [tokens, vocab] in memory.

    logits_t  = hidden_t @ weight.T + bias                     float32
    log_pi_t  = logits_t[target_t] - logsumexp(logits_t)
    entropy_t = logsumexp(logits_t) - sum_v softmax(logits_t)_v logits_t,v

Tokens are visited in chunks. The backward pass computes a chunk's logits again, so that at any time
those of one chunk exist: float32 [chunk, vocab]. 8 T H V FLOPs with gradients, 2 T H V without.

The head is float32 throughout: with bfloat16 logits of size 16 a probability is off by several
hundredths, a good part of the trust region.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from zaya_jax.model.outputs import Routing
from zaya_jax.model.transformer import Transformer
from zaya_jax.parallel.sharded_loss import score_tokens_on_mesh


class TokenLogProbs(NamedTuple):
    """Per token, float32."""

    log_probs: Float[Array, "*tokens"]  # carries gradients
    entropy: Float[Array, "*tokens"]  # of the next-token distribution in nats; no gradient


def token_log_probs(
    hidden: Float[Array, "tokens hidden"],
    weight: Float[Array, "vocab hidden"],
    bias: Float[Array, " vocab"] | None,
    targets: Int[Array, " tokens"],
    *,
    chunk_size: int = 512,
) -> TokenLogProbs:
    """Log-probability of each target and entropy of its distribution.

    Args:
      hidden: final states; used as float32.
      weight: the LM head, float32.
      bias: one value per vocabulary entry, or None.
      targets: token ids; one outside the vocabulary gives NaN.
      chunk_size: most tokens whose logits exist at once; changes nothing else.

    Raises:
      ValueError: for a chunk size below 1.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size}: must be at least 1")
    count = targets.shape[0]
    chunks = max(1, -(-count // chunk_size))
    chunk = max(1, -(-count // chunks))
    padding = chunks * chunk - count
    # [tokens + padding, ...] -> [chunks, chunk, ...]
    hidden = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(chunks, chunk, -1)
    targets = jnp.pad(targets, (0, padding)).reshape(chunks, chunk)

    @jax.checkpoint
    def of_chunk(part: tuple[Array, Array]) -> TokenLogProbs:
        states, ids = part
        logits = jnp.matmul(states, weight.T, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias[None, :]
        log_partition = jax.nn.logsumexp(logits, axis=1)
        column = jnp.where(ids < 0, weight.shape[0], ids)[:, None]  # a negative one would wrap
        chosen = jnp.take_along_axis(logits, column, axis=1, mode="fill")[:, 0]
        fixed = jax.lax.stop_gradient(logits)
        shares = jax.nn.softmax(fixed, axis=1)
        entropy = jax.lax.stop_gradient(log_partition) - jnp.sum(shares * fixed, axis=1)
        return TokenLogProbs(chosen - log_partition, entropy)

    values = jax.lax.map(of_chunk, (hidden.astype(weight.dtype), targets))
    return TokenLogProbs(*(x.reshape(-1)[:count] for x in values))


class PolicyForward(NamedTuple):
    """What one trainer forward pass says about a batch of packed sequences."""

    log_probs: Float[Array, "batch seq"]  # of `targets`, carries gradients
    entropy: Float[Array, "batch seq"]
    routing: Routing


def policy_forward(
    model: Transformer,
    params: Any,
    balancing: dict[str, Array],
    batch: dict[str, Array],
    *,
    chunk_size: int = 512,
) -> PolicyForward:
    """Runs the model on a batch and scores its targets.

    `batch` has tokens, targets, positions and segment_ids [batch, seq], and routes
    [layers, batch, seq] where recorded choices are to be replayed.
    """
    variables = {"params": params, "balancing": balancing}
    states: Any = model.apply(
        variables,
        batch["tokens"],
        positions=batch["positions"],
        segment_ids=batch["segment_ids"],
        routes=batch.get("routes"),
        method=Transformer.hidden_states,
    )
    head: Any = model.apply(variables, method=Transformer.head)
    weight, bias = head
    values = score_tokens_on_mesh(
        functools.partial(token_log_probs, chunk_size=chunk_size),
        states.final,
        weight,
        bias,
        batch["targets"],
    )
    return PolicyForward(values.log_probs, values.entropy, states.routing)
