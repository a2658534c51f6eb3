"""A needle counts only if the model retrieves it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.tiny import MODEL
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.evaluation.diagnostics.needles import make_needles, needle_grid, needles_found
from zaya_jax.model.transformer import Transformer


@pytest.fixture(scope="module")
def variables() -> dict[str, Any]:
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    shapes = jax.eval_shape(Transformer(MODEL).init, jax.random.key(0), tokens)
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda s: jnp.asarray(0.2 * random.standard_normal(s.shape), s.dtype), shapes
    )


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


def test_the_grid_has_a_cell_for_every_length_and_depth(monkeypatch: pytest.MonkeyPatch):
    module = "zaya_jax.evaluation.diagnostics.needles.needles_found"
    seen: list[tuple[int, int]] = []

    def found(config: Any, variables: Any, needles: Any) -> float:
        seen.append((len(needles), len(needles[0].ids)))
        return len(seen) / 10

    monkeypatch.setattr(module, found)
    told: list[str] = []
    grid = needle_grid(
        MODEL,
        {},
        load_tokenizer("bytes"),
        lengths=(64, 128),
        depths=(0.0, 1.0),
        trials=3,
        say=told.append,
    )
    assert grid.found == [[0.1, 0.2], [0.3, 0.4]]
    assert seen == [(3, 64), (3, 64), (3, 128), (3, 128)]
    assert told[-1] == "128 tokens, depth 100%: 40%"
