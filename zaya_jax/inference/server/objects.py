"""The JSON objects of answers."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.answer import Answer
from zaya_jax.inference.request import Completion, FinishReason


class Head:
    """What all objects of one answer share."""

    def __init__(self, kind: str, model: str) -> None:
        prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
        self.fields = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: Sequence[dict[str, Any]], completions: Sequence[Completion]) -> Any:
        """A finished answer."""
        return {**self.fields, "choices": list(choices), "usage": usage(completions)}

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A part of a streamed answer."""
        kind = str(self.fields["object"])
        kind = f"{kind}.chunk" if kind == "chat.completion" else kind
        return {**self.fields, "object": kind, "choices": [choice]}

    def last_chunk(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The chunk without choices that counts tokens."""
        return {**self.chunk({}), "choices": [], "usage": usage(completions)}


def usage(completions: Sequence[Completion]) -> dict[str, Any]:
    """Tokens read and drawn; a prompt shared by several choices counts once."""
    prompts = {completion.prompt: completion for completion in completions}
    prompt = sum(len(tokens) for tokens in prompts)
    drawn = sum(len(completion.tokens) for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {
            "cached_tokens": sum(completion.cached_tokens for completion in prompts.values())
        },
    }


def chat_message(answer: Answer) -> dict[str, Any]:
    """The assistant's message."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = tool_calls(answer)
        message["content"] = answer.content or None
    return message


def tool_calls(answer: Answer) -> list[dict[str, Any]]:
    """The calls of an answer."""
    return [
        {
            "index": index,
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(answer.calls)
    ]


def finish_reason(completion: Completion, answer: Answer | None = None) -> str | None:
    """Why a choice ended, in the protocol's words."""
    if completion.finish_reason is None:
        return None
    if answer is not None and answer.calls and completion.finish_reason is FinishReason.STOP:
        return "tool_calls"
    return "length" if completion.finish_reason is FinishReason.LENGTH else "stop"


def chat_logprobs(tokenizer: Tokenizer, completion: Completion, first: int) -> dict[str, Any]:
    """Log-probabilities of the tokens from `first` on, by the model's own distribution."""

    def entry(token: int, value: float) -> dict[str, Any]:
        text = tokenizer.decode([token], keep_special=True)
        return {"token": text, "logprob": value, "bytes": list(text.encode("utf-8"))}

    tops: Iterable[list[tuple[int, float]]] = completion.top[first:] or itertools.repeat([])
    pairs = zip(
        completion.tokens[first:], completion.raw_log_probabilities[first:], tops, strict=False
    )
    return {
        "content": [
            {
                **entry(token, value),
                "top_logprobs": [entry(other, its) for other, its in top if _has(tokenizer, other)],
            }
            for token, value, top in pairs
        ]
    }


def text_logprobs(tokenizer: Tokenizer, completion: Completion, first: int) -> dict[str, Any]:
    """The same in the form of text completions."""
    chat = chat_logprobs(tokenizer, completion, first)["content"]
    before = tokenizer.decode(completion.tokens[:first], keep_special=True)
    lengths = itertools.accumulate((len(own["token"]) for own in chat), initial=len(before))
    return {
        "tokens": [own["token"] for own in chat],
        "token_logprobs": [own["logprob"] for own in chat],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in own["top_logprobs"]} for own in chat
        ],
        "text_offset": list(lengths)[:-1],
    }


def error_object(message: str, kind: str, field: str | None, code: str | None) -> dict[str, Any]:
    """What every failed request is answered with."""
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def _has(tokenizer: Tokenizer, token: int) -> bool:
    """The head has rows without a token."""
    return token < tokenizer.vocab_size
