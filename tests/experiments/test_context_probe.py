"""Loss by position adds up to the loss, and a needle counts only if the model retrieves it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.context_probe import loss_by_position, make_needles, needles_found
from tests.training.tiny import MODEL, random_batch
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.loss import loss_sums


@pytest.fixture(scope="module")
def variables() -> dict[str, Any]:
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    shapes = jax.eval_shape(Transformer(MODEL).init, jax.random.key(0), tokens)
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda s: jnp.asarray(0.2 * random.standard_normal(s.shape), s.dtype), shapes
    )


@pytest.mark.slow
def test_buckets_add_up_to_the_loss_of_the_batch(variables: dict[str, Any]):
    batch = random_batch()
    buckets = loss_by_position(MODEL, variables, [batch])
    sums = jax.jit(lambda b: loss_sums(Transformer(MODEL), **variables, batch=b))(batch)
    assert sum(b.tokens for b in buckets) == int(sums.weight)
    total = sum(b.loss * b.tokens for b in buckets)
    assert total == pytest.approx(float(sums.loss), rel=1e-4)


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_needles_fill_the_length_and_hide_the_number_once(depth: float):
    tokenizer = load_tokenizer("bytes")
    for needle in make_needles(tokenizer, 200, depth, 3):
        assert len(needle.ids) == 200
        text = tokenizer.decode(needle.ids)
        number = text[-4:]
        assert text.count(number) == 2
        assert text.endswith(f"The secret number is {number}")
        assert abs(text.index(number) - depth * 150) < 30


@pytest.mark.slow
def test_a_model_that_retrieves_nothing_finds_nothing(variables: dict[str, Any]):
    needles = make_needles(load_tokenizer("bytes"), 64, 0.5, 4)
    assert needles_found(MODEL, variables, needles) == 0.0


def test_a_predicted_answer_counts_as_found(
    variables: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """A stand-in model that repeats what followed the same four tokens before."""
    needles = make_needles(load_tokenizer("bytes"), 64, 0.5, 4)

    def logits(self: Any, variables: Any, tokens: Any) -> Any:
        ids = tokens[0]
        index = jnp.arange(ids.size)
        same = jnp.stack([jnp.roll(ids, k) for k in range(4)])
        matches = jnp.all(same[:, :, None] == same[:, None, :], axis=0)
        earlier = matches & (index[None, :] < index[:, None])
        source = jnp.argmax(jnp.where(earlier, index[None, :] + 1, 0), axis=1)
        predicted = jnp.roll(ids, -1)[source]
        return type("Output", (), {"logits": jax.nn.one_hot(predicted, 272)[None]})

    monkeypatch.setattr(Transformer, "apply", logits)
    assert needles_found(MODEL, variables, needles) == 1.0
