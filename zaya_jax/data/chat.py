"""The chat template: a conversation as token ids with a mask of what is to be learnt.

    <bos><|im_start|>system\n…<|im_end|>\n
    <|im_start|>user\n…<|im_end|>\n
    <|im_start|>assistant\n<think>\n REASONING \n</think>\n\n ANSWER <|im_end|>\n

One bos, no eos. Learnt is what a model generates: reasoning, `</think>`, answer, tool calls and
`<|im_end|>`; not the opened `<think>\n`, which the generation prompt already holds. A thinking
model's turn without reasoning carries the empty block that stands for thinking switched off, and
nothing of the block is learnt. Tool results are a user turn. Text never becomes a control token:
a message that spells one is encoded as ordinary characters.

The layout of turns, think block and tool tags is that of the released template; the wording of the
tool declaration is our own.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from zaya_jax.data.config import DataError
from zaya_jax.data.conversation import Conversation, Message, ToolCall
from zaya_jax.data.tokenizer import Tokenizer

_MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


class Part(enum.Enum):
    """What trimming may do with a segment."""

    FIXED = "fixed"  # must stay
    REASONING = "reasoning"  # its tail may be cut
    BLOCK = "block"  # the tags around reasoning: may go, but only together with it


@dataclasses.dataclass(frozen=True)
class Segment:
    """A run of tokens that are treated alike."""

    ids: tuple[int, ...]
    is_learnt: bool
    part: Part = Part.FIXED
    turn: int = -1  # index of the message, for what trimming may touch


@dataclasses.dataclass(frozen=True)
class Rendered:
    """A conversation as segments, in order."""

    segments: tuple[Segment, ...]

    def __len__(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    def arrays(self) -> tuple[Int32[np.ndarray, " tokens"], Float32[np.ndarray, " tokens"]]:
        """Token ids, and for each token 1 if predicting it is to be learnt."""
        ids = [token for segment in self.segments for token in segment.ids]
        learnt = [float(s.is_learnt) for s in self.segments for _ in s.ids]
        return np.asarray(ids, np.int32), np.asarray(learnt, np.float32)


class ChatTemplate:
    """Renders conversations for one tokenizer.

    Raises:
      DataError: on construction, when the tokenizer lacks a control token of the template.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        missing = [name for name in _MARKERS if name not in tokenizer.special_tokens]
        if missing:
            raise DataError(
                f"tokenizer {tokenizer.name!r} lacks the control tokens {', '.join(missing)} of "
                "the chat template; use one that has them, such as zaya_demo_8k or bytes"
            )
        self._tokenizer = tokenizer
        self._special = tokenizer.special_tokens

    def render(
        self, conversation: Conversation, *, thinking: bool = True, generation_prompt: bool = False
    ) -> Rendered:
        """The whole conversation.

        Args:
          conversation: what was said.
          thinking: whether the model is a thinking one: turns without reasoning get an empty block.
          generation_prompt: whether to open the next assistant turn, with an open think block if
            `thinking` and an empty one if not.
        """
        segments = [self._fixed([self._tokenizer.bos_id])]
        messages = list(conversation.messages)
        if conversation.tools:
            first = messages.pop(0) if messages[0].role == "system" else Message("system", "")
            content = "\n\n".join(t for t in (first.content, declare(conversation.tools)) if t)
            segments += self._turn("system", content)
        offset = len(conversation.messages) - len(messages)
        for index, message in enumerate(messages, start=offset):
            if message.role == "assistant":
                segments += self._assistant(message, index, thinking)
            elif message.role == "tool":
                segments += self._tool_results(conversation.messages, index)
            else:
                segments += self._turn(message.role, message.content)
        if generation_prompt:
            segments.append(self._fixed([*self._start("assistant"), *self._opening(thinking)]))
        return Rendered(tuple(segment for segment in segments if segment.ids))

    def _turn(self, role: str, content: str) -> list[Segment]:
        return [
            self._fixed([*self._start(role), *self._text(content), *self._end(), *self._text("\n")])
        ]

    def _tool_results(self, messages: Sequence[Message], index: int) -> list[Segment]:
        """One user turn for results that follow one another."""
        ids: list[int] = []
        if index == 0 or messages[index - 1].role != "tool":
            ids += self._start("user")
        else:
            ids += self._text("\n")
        ids += self._tagged("zyphra_tool_response", f"\n{messages[index].content}\n")
        if index + 1 == len(messages) or messages[index + 1].role != "tool":
            ids += [*self._end(), *self._text("\n")]
        return [self._fixed(ids)]

    def _assistant(self, message: Message, turn: int, thinking: bool) -> Iterator[Segment]:
        yield self._fixed(self._start("assistant"))
        close = [self._special["</think>"]]
        if message.reasoning:
            opening = (self._special["<think>"], *self._text("\n"))
            yield Segment(opening, is_learnt=False, part=Part.BLOCK, turn=turn)
            reasoning = tuple(self._text(message.reasoning))
            yield Segment(reasoning, is_learnt=True, part=Part.REASONING, turn=turn)
            closing = (*self._text("\n"), *close, *self._text("\n\n"))
            yield Segment(closing, is_learnt=True, part=Part.BLOCK, turn=turn)
        elif thinking or message.reasoning is not None:
            yield self._fixed(self._opening(thinking=False))
        answer = self._text(message.content)
        for number, call in enumerate(message.tool_calls):
            answer += self._text("\n") if number or message.content else []
            answer += self._tagged("zyphra_tool_call", _call_text(call))
        yield Segment((*answer, *self._end()), is_learnt=True, turn=turn)
        yield self._fixed(self._text("\n"))

    def _opening(self, thinking: bool) -> list[int]:
        opened = [self._special["<think>"], *self._text("\n")]
        if thinking:
            return opened
        return [*opened, *self._text("\n"), self._special["</think>"], *self._text("\n\n")]

    def _tagged(self, tag: str, text: str) -> list[int]:
        return [*self._tag(f"<{tag}>"), *self._text(text), *self._tag(f"</{tag}>")]

    def _tag(self, tag: str) -> list[int]:
        """A tool tag is one token where the tokenizer has it, text where it does not."""
        return [self._special[tag]] if tag in self._special else self._text(tag)

    def _start(self, role: str) -> list[int]:
        return [self._special["<|im_start|>"], *self._text(f"{role}\n")]

    def _end(self) -> list[int]:
        return [self._special["<|im_end|>"]]

    def _text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text) if text else []

    def _fixed(self, ids: Sequence[int]) -> Segment:
        return Segment(tuple(ids), is_learnt=False)


def declare(tools: Sequence[Mapping[str, Any]]) -> str:
    """The section of the system turn that says which tools there are and how to call them."""
    lines = ["# Tools", "", "These functions can be called:", "", "<tools>"]
    for tool in tools:
        lines += ["<function>", f"<name>{tool['name']}</name>"]
        if tool.get("description"):
            lines.append(f"<description>{tool['description']}</description>")
        schema = tool.get("parameters") or {}
        required = schema.get("required") or ()
        lines.append("<parameters>")
        for name, details in (schema.get("properties") or {}).items():
            lines += ["<parameter>", f"<name>{name}</name>"]
            for key, value in details.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                lines.append(f"<{key}>{text}</{key}>")
            lines += [f"<required>{str(name in required).lower()}</required>", "</parameter>"]
        lines += ["</parameters>", "</function>"]
    example = _call_text(ToolCall("NAME", (("ARGUMENT", "value"),)))
    call = f"<zyphra_tool_call>{example}</zyphra_tool_call>"
    return "\n".join([*lines, "</tools>", "", "A call has this form:", "", call])


def _call_text(call: ToolCall) -> str:
    lines = [f"<function={call.name}>"]
    for name, value in call.arguments:
        lines += [f"<parameter={name}>", value, "</parameter>"]
    return "\n" + "\n".join([*lines, "</function>"]) + "\n"
