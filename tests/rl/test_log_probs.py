"""Log-probabilities in chunks: values, gradients, and no logits of all tokens at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.rl.log_probs import token_log_probs

TOKENS, HIDDEN, VOCAB = 13, 6, 11


def inputs(dtype: type = np.float32) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    return (
        jnp.asarray(random.normal(size=(TOKENS, HIDDEN)).astype(dtype)),
        jnp.asarray(random.normal(size=(VOCAB, HIDDEN)).astype(dtype)),
        jnp.asarray(random.normal(size=VOCAB).astype(dtype)),
        jnp.asarray(random.integers(0, VOCAB, TOKENS), jnp.int32),
    )


def plain(hidden: jax.Array, weight: jax.Array, bias: jax.Array, ids: jax.Array) -> jax.Array:
    table = jax.nn.log_softmax(hidden @ weight.T + bias[None, :], axis=1)
    return jnp.take_along_axis(table, ids[:, None], axis=1)[:, 0]


@pytest.mark.parametrize("chunk_size", [1, 4, 13, 512])
def test_chunks_give_the_values_of_the_whole(chunk_size: int) -> None:
    hidden, weight, bias, ids = inputs()
    values = jax.jit(lambda *a: token_log_probs(*a, chunk_size=chunk_size))(
        hidden, weight, bias, ids
    )
    np.testing.assert_allclose(values.log_probs, plain(hidden, weight, bias, ids), atol=2e-6)
    shares = jax.nn.softmax(hidden @ weight.T + bias[None, :], axis=1)
    np.testing.assert_allclose(values.entropy, -(shares * jnp.log(shares)).sum(axis=1), atol=2e-6)


def test_gradients_agree_with_those_of_the_whole() -> None:
    hidden, weight, bias, ids = inputs()
    factors = jnp.linspace(-1.0, 2.0, TOKENS)

    def chunked(*arrays: jax.Array) -> jax.Array:
        values = token_log_probs(*arrays, ids, chunk_size=4)
        return jnp.sum(factors * values.log_probs) + jnp.sum(values.entropy)  # entropy: no gradient

    def whole(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(factors * plain(*arrays, ids))

    ours = jax.jit(jax.grad(chunked, argnums=(0, 1, 2)))(hidden, weight, bias)
    theirs = jax.jit(jax.grad(whole, argnums=(0, 1, 2)))(hidden, weight, bias)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-6)


def test_logits_of_all_tokens_never_exist() -> None:
    tokens, vocab = 64, 4_096
    hidden, weight = jnp.ones((tokens, 4)), jnp.ones((vocab, 4))

    def total(h: jax.Array, w: jax.Array) -> jax.Array:
        ids = jnp.zeros(tokens, jnp.int32)
        return jnp.sum(token_log_probs(h, w, None, ids, chunk_size=8).log_probs)

    text = str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(hidden, weight))
    assert "[8,4096]" in text
    assert "[64,4096]" not in text
    assert "[8,8,4096]" not in text  # nor stacked chunk by chunk for the backward pass


@pytest.mark.parametrize("foreign", [-1, VOCAB])
def test_an_id_outside_the_vocabulary_is_nan_there_only(foreign: int) -> None:
    hidden, weight, bias, ids = inputs()
    values = jax.jit(token_log_probs)(hidden, weight, bias, ids.at[3].set(foreign))
    assert np.isnan(values.log_probs).tolist() == [i == 3 for i in range(TOKENS)]


def test_a_chunk_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk_size=0"):
        token_log_probs(*inputs(), chunk_size=0)
