"""Needles in long texts: is a number that was hidden far back found again?

A sentence with a number is hidden at some depth of unrelated text, which ends by asking for it. It
counts as found when every token of the number is the most likely next one.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from zaya_jax.config import ModelConfig
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.model.transformer import Transformer

_FILLER = ("The road is long.", "A bird sings.", "Rain falls on the roof.", "The kettle is warm.")


class Needle(NamedTuple):
    """A text that ends with the number hidden in it."""

    ids: list[int]
    answer_length: int  # tokens of the number at the end


class NeedleGrid(NamedTuple):
    """Share of needles found.

    Attributes:
      lengths: of the texts, in tokens.
      depths: 0 hides the number at the beginning, 1 at the end.
      found: by length and depth.
    """

    lengths: list[int]
    depths: list[float]
    found: list[list[float]]


def needle_grid(
    config: ModelConfig,
    variables: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    lengths: Sequence[int],
    depths: Sequence[float],
    trials: int,
    say: Callable[[str], Any] = lambda cell: None,
) -> NeedleGrid:
    """Hides and looks for needles at every length and depth.

    Args:
      config: architecture, with a context of at least the longest length.
      variables: parameters and balancing biases.
      tokenizer: of the model.
      lengths: of the texts, in tokens.
      depths: between 0 and 1.
      trials: needles of each length and depth.
      say: is told of each cell.
    """
    found = []
    for length in lengths:
        row = []
        for depth in depths:
            needles = make_needles(tokenizer, length, depth, trials)
            row.append(needles_found(config, variables, needles))
            say(f"{length:,} tokens, depth {depth:.0%}: {row[-1]:.0%}")
        found.append(row)
    return NeedleGrid(list(lengths), list(depths), found)


def make_needles(tokenizer: Tokenizer, length: int, depth: float, count: int) -> list[Needle]:
    """Texts of nearly `length` tokens with a number hidden at `depth` and repeated at the end."""
    random_source = random.Random(f"{length} {depth}")
    needles = []
    for _ in range(count):
        number = "".join(random_source.choices("123456789", k=4))
        fact, question = f" The secret number is {number}.", " The secret number is"
        answer = tokenizer.encode(f" {number}")
        room = length - 1 - sum(len(tokenizer.encode(t)) for t in (fact, question)) - len(answer)
        filler: list[int] = []
        while len(filler) < room:
            filler += tokenizer.encode(f" {random_source.choice(_FILLER)}")
        cut = int(depth * room)
        before, after = filler[:cut], filler[cut : max(room, 0)]
        ids = [tokenizer.bos_id, *before, *tokenizer.encode(fact), *after]
        needles.append(Needle([*ids, *tokenizer.encode(question), *answer], len(answer)))
    return needles


def needles_found(
    config: ModelConfig, variables: dict[str, Any], needles: Sequence[Needle]
) -> float:
    """Share of needles of which every token is predicted."""
    width = max(len(needle.ids) for needle in needles)
    tokens = np.zeros((len(needles), width), np.int32)
    is_answer = np.zeros((len(needles), width), np.bool_)
    for row, needle in enumerate(needles):
        end = len(needle.ids)
        tokens[row, :end] = needle.ids
        is_answer[row, end - needle.answer_length : end] = True
    found = jax.jit(functools.partial(_all_predicted, config))(variables, tokens, is_answer)
    return float(np.mean(np.asarray(found)))


def _all_predicted(
    config: ModelConfig,
    variables: dict[str, Any],
    tokens: Int[Array, "batch seq"],
    is_answer: Bool[Array, "batch seq"],
) -> Bool[Array, " batch"]:
    def one_row(row: tuple[Array, Array]) -> Bool[Array, ""]:
        ids, asked = row
        output: Any = Transformer(config).apply(variables, ids[None])
        predicted = jnp.argmax(output.logits[0], axis=-1)
        return jnp.all(jnp.where(asked[1:], predicted[:-1] == ids[1:], True))

    return jax.lax.map(one_row, (tokens, is_answer))
