"""One choice of a streamed answer, chunk by chunk."""

from __future__ import annotations

from typing import Any

from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.answer import read_answer
from zaya_jax.inference.engine import Update
from zaya_jax.inference.server import objects
from zaya_jax.inference.server.protocol import Call, ChatCall, TextCall

_MARKERS = ("<think>", "</think>", "<zyphra_tool_call>")


class ChoiceStream:
    """Turns the updates of one choice into its chunks."""

    def __init__(
        self, tokenizer: Tokenizer, call: Call, own: ChatCall | TextCall, number: int
    ) -> None:
        self._tokenizer, self._call, self._own, self._number = tokenizer, call, own, number
        self._text = self._reasoning = self._content = ""
        self._begun = False

    def take(self, update: Update) -> list[dict[str, Any]]:
        """The chunks that an update makes."""
        self._text += update.text
        completion = update.completion
        if isinstance(self._own, TextCall):
            logprobs = objects.text_logprobs(self._tokenizer, completion, update.first)
            choice = {
                "index": self._number,
                "text": update.text,
                "logprobs": logprobs if self._call.logprobs else None,
                "finish_reason": objects.finish_reason(completion),
            }
            return [choice] if update.text or choice["finish_reason"] else []
        return self._chat(update, self._own)

    def _chat(self, update: Update, own: ChatCall) -> list[dict[str, Any]]:
        completion = update.completion
        ended = completion.finish_reason is not None
        text = self._text if ended else _without_open_marker(self._text)
        answer = read_answer(text, thinking=own.thinking, parse_calls=own.parse_tools)
        delta: dict[str, Any] = {} if self._begun else {"role": "assistant", "content": ""}
        if answer.reasoning[len(self._reasoning) :]:
            delta["reasoning_content"] = answer.reasoning[len(self._reasoning) :]
        if answer.content[len(self._content) :]:
            delta["content"] = answer.content[len(self._content) :]
        if ended and answer.calls:
            delta["tool_calls"] = objects.tool_calls(answer)
        self._reasoning, self._content, self._begun = answer.reasoning, answer.content, True
        logprobs = None
        if self._call.logprobs:
            logprobs = objects.chat_logprobs(self._tokenizer, completion, update.first)
        if not delta and not ended and logprobs is None:
            return []
        return [
            {
                "index": self._number,
                "delta": delta,
                "logprobs": logprobs,
                "finish_reason": objects.finish_reason(completion, answer),
            }
        ]


def _without_open_marker(text: str) -> str:
    """Leaves out an end that may become a marker."""
    for length in range(max(map(len, _MARKERS)) - 1, 0, -1):
        if any(text.endswith(m[:length]) for m in _MARKERS if length < len(m)):
            return text[:-length]
    return text
