"""Sampling: what may never be drawn, and top-p on a distribution known by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.tiny import MODEL
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference import sample
from zaya_jax.inference.sample import keep_top_p, sample_text
from zaya_jax.model.transformer import Transformer


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, 1), (0.4, 1), (0.5, 1), (0.51, 2), (0.8, 3), (1.0, 4)]
)
def test_top_p_keeps_the_least_set_that_reaches_it(top_p: float, kept: int):
    logits = jnp.log(jnp.asarray([0.05, 0.5, 0.2, 0.25]))
    order = [1, 3, 2, 0]
    finite = np.isfinite(keep_top_p(logits, top_p))
    assert set(np.flatnonzero(finite)) == set(order[:kept])


def test_never_draws_rows_without_a_token_nor_pad_nor_bos(monkeypatch: pytest.MonkeyPatch):
    """The head is made to want exactly those ids."""
    tokenizer = load_tokenizer("bytes")
    config = MODEL.replace(vocab_size=300, head_bias=True)
    tokens = jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(config).init)(jax.random.key(0), tokens)
    wanted = [tokenizer.bos_id, tokenizer.pad_id, *range(tokenizer.vocab_size, 300)]
    wanted = [token for token in wanted if token != tokenizer.eos_id]
    bias = jnp.zeros((300,)).at[jnp.asarray(wanted)].set(100.0)
    bias = bias.at[tokenizer.eos_id].set(-100.0)
    variables["params"]["head_bias"] = bias
    drawn: list[int] = []
    monkeypatch.setattr(sample, "_decode", lambda _, ids: drawn.extend(ids) or "")
    rng = jax.random.key_data(jax.random.key(1))
    sample_text(config, variables, tokenizer, "ab", max_tokens=20, rng=rng, top_p=1.0)
    assert len(drawn) == 20
    assert not set(drawn) & set(wanted)


def test_prompt_and_length_must_fit_the_model():
    tokenizer = load_tokenizer("bytes")
    rng = jax.random.key_data(jax.random.key(1))
    with pytest.raises(ValueError, match="max_position_embeddings=64"):
        sample_text(MODEL, {}, tokenizer, "x" * 60, max_tokens=20, rng=rng)
