"""What the small recipe measures after each stage: held-out loss, and exactly right answers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from zaya_jax.config import ModelConfig
from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.config import DataConfig
from zaya_jax.data.conversation import Conversation
from zaya_jax.data.pipeline import Batch
from zaya_jax.data.samples import Sample, read_samples
from zaya_jax.data.sources import split
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.loss import loss_sums


class Problem(NamedTuple):
    """What the model is asked, up to the opened think block, and the right answer."""

    prompt: tuple[int, ...]
    answer: str


def held_out_problems(
    source: str, config: DataConfig, tokenizer: Tokenizer, count: int
) -> list[Problem]:
    """The first problems of the part of a source that training never sees."""
    samples = read_samples(source, config).samples
    _, held_out = split(samples, config.validation_fraction)
    return [_problem(sample, tokenizer) for sample in held_out[:count]]


def held_out_loss(
    config: ModelConfig, variables: dict[str, Any], batches: Sequence[Batch]
) -> float:
    """Mean cross entropy in nats over the learnt tokens of the batches."""

    @jax.jit
    def sums(variables: dict[str, Any], batch: dict[str, Array]) -> tuple[Array, Array]:
        result = loss_sums(Transformer(config), variables["params"], variables["balancing"], batch)
        return result.loss, result.weight

    parts = jax.device_get([sums(variables, batch) for batch in batches])
    return float(sum(loss for loss, _ in parts) / sum(weight for _, weight in parts))


def exact_answers(
    config: ModelConfig,
    variables: dict[str, Any],
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    max_tokens: int,
) -> list[bool]:
    """Whether each answer, decoded greedily with its reasoning, is the right one to the letter."""
    longest = max(len(problem.prompt) for problem in problems)
    tokens = np.full((len(problems), longest + max_tokens), tokenizer.pad_id, np.int32)
    ends = np.asarray([len(problem.prompt) for problem in problems], np.int32)
    for row, problem in zip(tokens, problems, strict=True):
        row[: len(problem.prompt)] = problem.prompt
    step = jax.jit(functools.partial(_greedy, config))
    array = jnp.asarray(tokens)
    ended = np.zeros(len(problems), np.bool_)
    for number in range(max_tokens):
        array = step(variables, array, jnp.asarray(ends + number))
        ended |= np.asarray(array)[np.arange(len(ends)), ends + number] == tokenizer.end_of_turn_id
        if ended.all():
            break
    generated = np.asarray(array)
    return [
        _answer(tokenizer, row[end : end + max_tokens]) == problem.answer
        for row, end, problem in zip(generated, ends, problems, strict=True)
    ]


def _greedy(
    config: ModelConfig,
    variables: dict[str, Any],
    tokens: Int[Array, "batch seq"],
    ends: Int[Array, " batch"],
) -> Int[Array, "batch seq"]:
    """Fills position `ends` of every row with the most likely token."""
    positions = jnp.arange(tokens.shape[1])[None, :]
    real = (positions < ends[:, None]).astype(jnp.int32)
    output: Any = Transformer(config).apply(variables, tokens, segment_ids=real)
    rows = jnp.arange(tokens.shape[0])
    best = jnp.argmax(output.logits[rows, ends - 1], axis=-1)
    return tokens.at[rows, ends].set(best.astype(tokens.dtype))


def _answer(tokenizer: Tokenizer, ids: np.ndarray) -> str | None:
    """What stands between the close of the think block and the end of the turn."""
    close, end = tokenizer.special_tokens["</think>"], tokenizer.end_of_turn_id
    plain = ids.tolist()
    if close not in plain or end not in plain[plain.index(close) :]:
        return None
    start = plain.index(close) + 1
    answer = plain[start : plain.index(end, start)]
    return tokenizer.decode(token for token in answer if token < tokenizer.vocab_size).strip()


def _problem(sample: Sample, tokenizer: Tokenizer) -> Problem:
    conversation = sample.content
    if not isinstance(conversation, Conversation):
        raise TypeError(f"{sample.place} is no conversation")
    *asked, answer = conversation.messages
    prompt = ChatTemplate(tokenizer).render(
        dataclasses.replace(conversation, messages=tuple(asked)), generation_prompt=True
    )
    return Problem(tuple(prompt.arrays()[0].tolist()), answer.content)
