"""Conversations as checked values: what a row of chat data must look like.

A row is `{"messages": [...], "tools": [...]}`. Each message has a `role`:

| role | fields |
| --- | --- |
| system, user | `content` |
| assistant | `content`, the answer; optional `reasoning` and `tool_calls` |
| tool | `content`, what a tool gave back |

Reasoning may also be called `reasoning_content`, or open the content as a `<think>` block.
A tool call is `{"name": …, "arguments": {…}}`, bare or under a key `function`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
_OPEN, _CLOSE = "<think>", "</think>"


class RowError(ValueError):
    """One row cannot be used. The message says why; whoever reads the file adds the place."""


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call with its arguments as text, in their order."""

    name: str
    arguments: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Message:
    """One message. `reasoning` is None where there is no think block, "" where it is empty."""

    role: str
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Checked messages, and the declarations of tools as given."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


def parse_conversation(row: Mapping[str, Any]) -> Conversation:
    """Checks one row of chat data.

    Raises:
      RowError: for a missing field, an unknown role, an empty answer, a think block that is not
        closed or comes twice, or a conversation without an assistant.
    """
    messages = row.get("messages")
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise RowError(f"'messages' is {type(messages).__name__}, expected a list")
    parsed = tuple(_parse_message(index, message) for index, message in enumerate(messages))
    if not any(message.role == "assistant" for message in parsed):
        raise RowError("no assistant message: there is nothing to learn")
    for index, message in enumerate(parsed):
        if message.role == "system" and index > 0:
            raise RowError(f"message {index}: the system message must come first")
    tools = enumerate(_entries(row, "tools"))
    return Conversation(parsed, tuple(_declaration(index, tool) for index, tool in tools))


def split_reasoning(content: str) -> tuple[str | None, str]:
    """(reasoning, answer) of a content that may open with a think block.

    A block inside the block belongs to its text: the outermost tags count.

    Raises:
      RowError: when the block is not closed, or tags stand outside of it.
    """
    stripped = content.lstrip()
    if not stripped.startswith(_OPEN):
        if _OPEN in content or _CLOSE in content:
            raise RowError("think tags outside of a block at the beginning of the content")
        return None, content
    end = _closing_tag(stripped)
    reasoning = stripped[len(_OPEN) : end].strip("\n")
    answer = stripped[end + len(_CLOSE) :].lstrip("\n")
    if _OPEN in answer or _CLOSE in answer:
        raise RowError("a second think block, or a tag too many, after the first block")
    return reasoning, answer


def _closing_tag(text: str) -> int:
    depth, position = 0, 0
    while True:
        opening, closing = text.find(_OPEN, position), text.find(_CLOSE, position)
        if closing < 0:
            raise RowError("a think block is not closed")
        if 0 <= opening < closing:
            depth, position = depth + 1, opening + len(_OPEN)
            continue
        depth, position = depth - 1, closing + len(_CLOSE)
        if depth == 0:
            return closing


def _parse_message(index: int, message: Any) -> Message:
    try:
        return _message(message)
    except RowError as error:
        raise RowError(f"message {index}: {error}") from None


def _message(message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise RowError(f"is {type(message).__name__}, expected an object")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise RowError(f"role {role!r} is none of {', '.join(ROLES)}")
    calls = tuple(_tool_call(call) for call in _entries(message, "tool_calls"))
    if calls and content is None:
        content = ""
    if not isinstance(content, str):
        raise RowError(f"'content' is {type(content).__name__}, expected text")
    if role != "assistant":
        if not content.strip() and role == "user":
            raise RowError("the user says nothing")
        return Message(role, content)
    reasoning = message.get("reasoning", message.get("reasoning_content"))
    if reasoning is None:
        reasoning, content = split_reasoning(content)
    elif not isinstance(reasoning, str):
        raise RowError(f"'reasoning' is {type(reasoning).__name__}, expected text")
    elif _OPEN in content or _CLOSE in content:
        raise RowError("think tags in the content of a message with reasoning of its own")
    if not content.strip() and not calls:
        raise RowError("the answer is empty")
    return Message(role, content, None if reasoning is None else reasoning.strip("\n"), calls)


def _tool_call(call: Any) -> ToolCall:
    inner = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise RowError("a tool call without a name")
    arguments = inner.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            raise RowError(f"arguments of {inner['name']!r} are not JSON") from None
    if not isinstance(arguments, Mapping):
        raise RowError(f"arguments of {inner['name']!r} are no object")
    return ToolCall(inner["name"], tuple((str(k), _as_text(v)) for k, v in arguments.items()))


def _declaration(index: int, tool: Any) -> Mapping[str, Any]:
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise RowError(f"tool {index} has no name")
    schema = inner.get("parameters") or {}
    if not isinstance(schema, Mapping):
        raise RowError(f"tool {index}: its parameters are no object")
    properties = schema.get("properties") or {}
    if not isinstance(properties, Mapping) or not all(
        isinstance(details, Mapping) for details in properties.values()
    ):
        raise RowError(f"tool {index}: its properties are no object of objects")
    _entries(schema, "required")
    return inner


def _entries(fields: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A list that may be missing."""
    value = fields.get(name) or ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RowError(f"{name!r} is {type(value).__name__}, expected a list")
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
