"""Reading what a chat model wrote: reasoning, answer, tool calls.

The generation prompt ends in an opened think block, or in an empty one where thinking is off. So
reasoning is what comes before `</think>`; without one the model was cut off while thinking. With
thinking off everything is answer, unless the model opens a block of its own all the same.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_OPEN, _CLOSE = "<think>", "</think>"
_CALL = re.compile(r"<zyphra_tool_call>(.*?)(?:</zyphra_tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


class Call(NamedTuple):
    """A tool call; arguments as JSON text of an object."""

    name: str
    arguments: str


class Answer(NamedTuple):
    """The parts of what a model wrote.

    Attributes:
      reasoning: inside the think block; "" where there is none.
      content: the rest, without tool calls.
      calls: tool calls in their order.
      thought: whether the think block was closed, or there was none.
    """

    reasoning: str
    content: str
    calls: tuple[Call, ...]
    thought: bool


def read_answer(text: str, *, thinking: bool, parse_calls: bool = True) -> Answer:
    """Splits what followed the generation prompt.

    Args:
      text: with control tokens as text.
      thinking: whether the prompt ended in an opened think block.
      parse_calls: whether to take tool calls out of the answer.
    """
    reasoning, rest, thought = _split_thinking(text, thinking)
    if not parse_calls or not thought:
        return Answer(reasoning, rest.strip("\n"), (), thought)
    calls = tuple(_call(match) for block in _CALL.findall(rest) for match in _functions(block))
    content = _CALL.sub("", rest) if calls else rest
    return Answer(reasoning, content.strip("\n"), calls, thought)


def _split_thinking(text: str, thinking: bool) -> tuple[str, str, bool]:
    if not thinking:
        if not text.lstrip().startswith(_OPEN):
            return "", text, True
        text = text.lstrip()
    text = text.removeprefix(_OPEN)
    before, closed, after = text.partition(_CLOSE)
    return before.strip("\n"), after if closed else "", bool(closed)


def _functions(block: str) -> list[tuple[str, str]]:
    return _FUNCTION.findall(block)


def _call(match: tuple[str, str]) -> Call:
    name, body = match
    arguments = {key.strip(): _value(value) for key, value in _PARAMETER.findall(body)}
    return Call(name.strip(), json.dumps(arguments, ensure_ascii=False))


def _value(text: str) -> Any:
    """Values stand on their own lines; what is JSON other than a string is taken as such."""
    text = text.removeprefix("\n").removesuffix("\n")
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
