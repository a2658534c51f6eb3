"""What is asked of the engine, and what it answers."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_TOP_LOGPROBS = 20
MOST_STOP_TOKENS = 8
_LARGEST_INTEGER = 2**31 - 1  # of the arrays that settings travel in


class RequestError(ValueError):
    """A request that cannot be served. The message names field, value and rule."""


class FinishReason(enum.StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # a stop token or a stop string
    LENGTH = "length"  # max_tokens
    CANCELLED = "cancelled"


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How to draw tokens, and when to end.

    Raises:
      RequestError: on construction, when a field breaks a rule.
    """

    max_tokens: int = 128  # most tokens to draw
    temperature: float = 1.0  # 0: always the most likely token
    top_p: float = 1.0  # least set of likely tokens that reaches this; 1 keeps all
    top_k: int = 0  # most tokens to keep; 0 keeps all
    min_p: float = 0.0  # least probability, as a share of the most likely token's
    repetition_penalty: float = 1.0  # divides positive logits of tokens seen before
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)  # added to logits
    seed: int | None = None  # None: drawn by the engine
    stop_tokens: tuple[int, ...] = ()  # end the completion and are its last token
    stop: tuple[str, ...] = ()  # texts that end it; neither they nor what follows is in the text
    top_logprobs: int = 0  # alternatives to report for each token

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1, _LARGEST_INTEGER)
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0)
        _integer("top_k", self.top_k, 0, _LARGEST_INTEGER)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _integer("top_logprobs", self.top_logprobs, 0, MOST_TOP_LOGPROBS)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        for token, bias in self.logit_bias.items():
            _number(f"logit_bias[{token}]", bias, -100.0, 100.0)
        if any(text == "" for text in self.stop):
            raise RequestError("stop: a stop string must not be empty")
        if len(self.stop_tokens) > MOST_STOP_TOKENS:
            raise RequestError(
                f"stop_tokens: {len(self.stop_tokens)} of them, at most {MOST_STOP_TOKENS}"
            )


@dataclasses.dataclass(frozen=True)
class Request:
    """One completion to make.

    Attributes:
      tokens: the prompt, bos included where the model wants one.
      sampling: see `SamplingParams`.
    """

    tokens: tuple[int, ...]
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)


@dataclasses.dataclass
class Completion:
    """A completion so far, or finished.

    Attributes:
      prompt: the request's tokens.
      tokens: drawn tokens, a stop token included.
      text: of `tokens` up to a stop string, control tokens left out; "" without a tokenizer.
      log_probabilities: of each token under the distribution that was sampled.
      raw_log_probabilities: of each token under the model's own distribution.
      top: most likely tokens and their log-probabilities, for each token.
      versions: of the weights that drew each token.
      routes: router class of each layer for every token that was fed, prompt first; the last token
        is never fed, so there is one row less than there are tokens.
      finish_reason: None while it runs.
      cached_tokens: prompt tokens that came from the prefix cache.
    """

    prompt: tuple[int, ...]
    tokens: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    log_probabilities: list[float] = dataclasses.field(default_factory=list)
    raw_log_probabilities: list[float] = dataclasses.field(default_factory=list)
    top: list[list[tuple[int, float]]] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    routes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0


def check_prompt(request: Request, vocab_size: int, most_positions: int, most_cached: int) -> None:
    """Refuses what the model or the cache cannot hold.

    Raises:
      RequestError: for an empty prompt, a foreign token, or too many tokens.
    """
    tokens: Sequence[int] = request.tokens
    if not tokens:
        raise RequestError("the prompt is empty; give at least one token")
    sampling = request.sampling
    for token in (*tokens, *sampling.logit_bias, *sampling.stop_tokens):
        if not 0 <= token < vocab_size:
            raise RequestError(f"token id {token} is outside the vocabulary 0..{vocab_size - 1}")
    total = len(tokens) + sampling.max_tokens
    room = min(most_positions, most_cached)
    if total > room:
        raise RequestError(
            f"prompt of {len(tokens)} tokens and max_tokens={sampling.max_tokens} exceed "
            f"the {room} tokens a sequence can have here; shorten one of them"
        )


def _number(name: str, value: Any, least: float, most: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # neither NaN nor infinity is
        raise RequestError(f"{name}={value!r}: must be a number from {least:g} to {most:g}")


def _integer(name: str, value: Any, least: int, most: int) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not least <= value <= most:
        raise RequestError(f"{name}={value!r}: must be an integer from {least} to {most}")
