"""One request while the engine works on it, and its rows in the arrays of a dispatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Many
from typing import Any

import numpy as np

from zaya_jax.inference.forward import NOWHERE, Rows
from zaya_jax.inference.programs import DecodeRows
from zaya_jax.inference.request import MOST_STOP_TOKENS, Completion, FinishReason, Request
from zaya_jax.inference.sampling import RowSampling
from zaya_jax.inference.text import TextStream


@dataclasses.dataclass
class Sequence:
    """A request with what the engine knows about it.

    Attributes:
      number: names it; later requests have higher numbers.
      request: what was asked.
      completion: what has been answered.
      text: of the completion; None without a tokenizer.
      seed: of its random numbers.
      part: of the engine, see `parts`; tells nothing while it waits.
      slot: where its state lies in the cache; -1 while it waits.
      cached: tokens whose keys and values are in the cache.
      pages: ids of its pages, in order.
      sliding: ids of its sliding layers' pages by page number; the oldest are given back.
      version: of the weights when it was last started: pages count for the prefix cache only if
        the weights have stayed the same.
      block: number of its last remembered block, -1 for none.
      remembered: pages that are in the prefix cache.
      routes: one row per cached token.
    """

    number: int
    request: Request
    completion: Completion
    text: TextStream | None
    seed: int
    part: int = 0
    slot: int = -1
    cached: int = 0
    pages: list[int] = dataclasses.field(default_factory=list)
    sliding: dict[int, int] = dataclasses.field(default_factory=dict)
    version: int = 0
    block: int = -1
    remembered: int = 0
    routes: list[np.ndarray] = dataclasses.field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.request.tokens) + len(self.completion.tokens)

    @property
    def remaining(self) -> int:
        """Tokens it may still draw."""
        return self.request.sampling.max_tokens - len(self.completion.tokens)

    @property
    def ready(self) -> bool:
        """Whether everything but the newest token is cached, so that the next can be drawn."""
        return self.cached == self.length - 1

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens `start` to `stop` of prompt and completion."""
        prompt = self.request.tokens
        if stop <= len(prompt):
            return list(prompt[start:stop])
        return [*prompt, *self.completion.tokens][start:stop]

    def record_routes(self, routes: np.ndarray) -> None:
        """Adds the classes of the tokens just cached, [tokens, layers].

        A sequence that is computed anew keeps the classes that were recorded first.
        """
        known = len(self.routes) - self.cached
        self.routes.extend(routes[known:] if known > 0 else routes)

    def add(self, token: int) -> None:
        """Takes a drawn token into text; ends the completion where the request says so."""
        sampling, completion = self.request.sampling, self.completion
        completion.tokens.append(token)
        is_stop = token in sampling.stop_tokens
        if self.text is not None and not is_stop:
            self.text.push(token)
        if is_stop or (self.text is not None and self.text.stopped):
            completion.finish_reason = FinishReason.STOP
        elif self.remaining == 0:
            completion.finish_reason = FinishReason.LENGTH


def cache_rows(
    sequences: Many[Sequence | None], lengths: Many[int], *, table: int, sliding_table: int
) -> Rows:
    """Where the state and pages of each row's sequence are; rows without one do nothing."""
    rows = len(sequences)
    slot = np.full(rows, NOWHERE, np.int32)
    start, own_length, base = (np.zeros(rows, np.int32) for _ in range(3))
    own_table = np.full((rows, table), NOWHERE, np.int32)
    own_sliding = np.full((rows, sliding_table), NOWHERE, np.int32)
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        if sequence is None:
            continue
        slot[row] = sequence.slot
        start[row] = sequence.cached
        own_length[row] = length
        own_table[row, : len(sequence.pages)] = sequence.pages[:table]
        if sequence.sliding:
            base[row] = min(sequence.sliding)
            for number, page in sequence.sliding.items():
                own_sliding[row, number - base[row]] = page
    arrays: Any = (slot, start, own_length, own_table, own_sliding, base)
    return Rows(*arrays)


def decode_rows(sequences: Many[Sequence | None]) -> DecodeRows:
    """Where the generation of each row's sequence stands."""
    rows = len(sequences)
    result = DecodeRows(
        token=np.zeros(rows, np.int32),
        remaining=np.zeros(rows, np.int32),
        drawn=np.zeros(rows, np.int32),
        stop=np.full((rows, MOST_STOP_TOKENS), -2, np.int32),
    )
    for row, sequence in enumerate(sequences):
        if sequence is None:
            continue
        stops = sequence.request.sampling.stop_tokens
        result.token[row] = sequence.tokens(sequence.length - 1, sequence.length)[0]
        result.remaining[row] = sequence.remaining
        result.drawn[row] = len(sequence.completion.tokens)
        result.stop[row, : len(stops)] = stops
    return result


def sampling_rows(sequences: Many[Sequence | None], vocab: int) -> RowSampling:
    """The sampling settings of each row's sequence."""
    rows = len(sequences)
    own = [(row, sequence) for row, sequence in enumerate(sequences) if sequence is not None]

    def column(name: str, neutral: float, dtype: type) -> np.ndarray:
        values: np.ndarray = np.full(rows, neutral, dtype)
        for row, sequence in own:
            values[row] = getattr(sequence.request.sampling, name)
        return values

    seeds = np.zeros((rows, 2), np.uint32)
    for row, sequence in own:
        seeds[row] = ((sequence.seed >> 32) & 0xFFFFFFFF, sequence.seed & 0xFFFFFFFF)
    seen = bias = None
    if any(sequence.request.sampling.repetition_penalty != 1.0 for _, sequence in own):
        seen = np.zeros((rows, vocab), np.bool_)
        for row, sequence in own:
            seen[row, sequence.tokens(0, sequence.length)] = True
    if any(sequence.request.sampling.logit_bias for _, sequence in own):
        bias = np.zeros((rows, vocab), np.float32)
        for row, sequence in own:
            for token, value in sequence.request.sampling.logit_bias.items():
                bias[row, token] = value
    return RowSampling(
        seed=seeds,
        temperature=column("temperature", 0.0, np.float32),
        top_k=column("top_k", 0, np.int32),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
        repetition_penalty=column("repetition_penalty", 1.0, np.float32),
        seen=seen,
        bias=bias,
    )
