"""Bodies of requests, checked field by field. A wrong one is answered with what is wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from zaya_jax.data.conversation import ROLES, Conversation, Message, ToolCall
from zaya_jax.inference.request import MOST_STOP_TOKENS, RequestError, SamplingParams

MOST_CHOICES = 16
_MOST_STOPS = 4
_MISSING = object()

# Fields that change what comes out, so that leaving them out silently would be a wrong answer.
_UNSUPPORTED = {
    "response_format": "structured output",
    "functions": "the old function protocol; use tools",
    "best_of": "best_of",
    "suffix": "suffix",
    "echo": "echo",
    "presence_penalty": "presence penalty; use repetition_penalty",
    "frequency_penalty": "frequency penalty; use repetition_penalty",
}


class BodyError(ValueError):
    """The body cannot be served as it is. `field` is the one to change, None for all of it."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclasses.dataclass(frozen=True)
class Call:
    """What both kinds of completions share.

    Attributes:
      model: asked for.
      sampling: without seed and closing tokens.
      seed: of the first choice; None draws one.
      n: choices.
      stream: whether to send the text as it comes.
      include_usage: whether the stream ends in a count of tokens.
      logprobs: whether to report log-probabilities of tokens.
    """

    model: str
    sampling: SamplingParams
    seed: int | None
    n: int
    stream: bool
    include_usage: bool
    logprobs: bool


@dataclasses.dataclass(frozen=True)
class ChatCall:
    """A body for `/v1/chat/completions`.

    Attributes:
      call: what both kinds share.
      conversation: up to the answer.
      thinking: whether the answer begins inside a think block.
      parse_tools: whether to take tool calls out of the answer.
      begun: text of the answer that is there already and is to be continued.
    """

    call: Call
    conversation: Conversation
    thinking: bool
    parse_tools: bool
    begun: str


@dataclasses.dataclass(frozen=True)
class TextCall:
    """A body for `/v1/completions`; each prompt is text or token ids."""

    call: Call
    prompts: tuple[str | tuple[int, ...], ...]


def parse_body(raw: bytes) -> Mapping[str, Any]:
    """The JSON object in a body.

    Raises:
      BodyError: when there is none.
    """
    try:
        body = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BodyError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BodyError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BodyError("the body must be a JSON object")
    return body


def chat_call(body: Mapping[str, Any], default_max_tokens: int) -> ChatCall:
    """Checks a chat body.

    Raises:
      BodyError: naming the field.
    """
    messages = _field(body, "messages", list)
    if not messages:
        raise BodyError("messages must not be empty", "messages")
    tools = _field(body, "tools", list, None) or []
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise BodyError(
            f'tool_choice={choice!r}: must be "auto" or "none"; a call cannot be forced here',
            "tool_choice",
        )
    template = _field(body, "chat_template_kwargs", dict, {})
    thinking = template.get("enable_thinking", body.get("enable_thinking", True))
    if not isinstance(thinking, bool):
        raise BodyError("enable_thinking must be true or false", "enable_thinking")
    parsed = tuple(_message(index, message) for index, message in enumerate(messages))
    for index, message in enumerate(parsed):
        if message.role == "system" and index:
            raise BodyError("the system message must come first", f"messages.{index}.role")
    begun = ""
    if _field(body, "continue_final_message", bool, False):
        if parsed[-1].role != "assistant":
            raise BodyError("there is no assistant message to continue", "continue_final_message")
        *parsed_before, last = parsed
        parsed, begun = tuple(parsed_before), last.content
    if not parsed:
        raise BodyError("messages must hold more than the answer to continue", "messages")
    declared = tuple(_tool(index, tool) for index, tool in enumerate(tools))
    logprobs = _field(body, "logprobs", bool, False)
    top = _field(body, "top_logprobs", int, 0)
    if top and not logprobs:
        raise BodyError("top_logprobs needs logprobs: true", "top_logprobs")
    limit = "max_completion_tokens" if body.get("max_completion_tokens") else "max_tokens"
    return ChatCall(
        call=_call(body, default_max_tokens, limit, logprobs, top),
        conversation=Conversation(parsed, declared if choice == "auto" else ()),
        thinking=thinking,
        parse_tools=bool(declared) and choice == "auto",
        begun=begun,
    )


def text_call(body: Mapping[str, Any]) -> TextCall:
    """Checks a text completion body.

    Raises:
      BodyError: naming the field.
    """
    prompt = body.get("prompt", _MISSING)
    is_one_of_ids = isinstance(prompt, list) and prompt and all(map(_is_id, prompt))
    if isinstance(prompt, str) or is_one_of_ids:
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise BodyError("prompt must be text, token ids, or a list of either", "prompt")
    prompts: list[str | tuple[int, ...]] = []
    for entry in prompt:
        if isinstance(entry, list) and entry and all(_is_id(token) for token in entry):
            prompts.append(tuple(entry))
        elif isinstance(entry, str):
            prompts.append(_text(entry, "prompt"))
        else:
            raise BodyError("prompt must be text, token ids, or a list of either", "prompt")
    top = _field(body, "logprobs", int, None)
    call = _call(body, 16, "max_tokens", top is not None, top or 0)
    if len(prompts) * call.n > MOST_CHOICES:
        raise BodyError(f"{len(prompts)} prompts times n={call.n}: at most {MOST_CHOICES}", "n")
    return TextCall(call, tuple(prompts))


def _call(
    body: Mapping[str, Any], default_max_tokens: int, limit: str, logprobs: bool, top: int
) -> Call:
    for name, what in _UNSUPPORTED.items():
        if body.get(name) not in (None, 0, 0.0, False, "", 1 if name == "best_of" else None):
            plain_text = name == "response_format" and body[name] == {"type": "text"}
            if not plain_text:
                raise BodyError(f"{name} is not supported here ({what})", name)
    n = _field(body, "n", int, 1)
    if not 1 <= n <= MOST_CHOICES:
        raise BodyError(f"n={n}: must be from 1 to {MOST_CHOICES}", "n")
    options = _field(body, "stream_options", dict, {})
    seed = _field(body, "seed", int, None)
    sampling = _sampling(body, default_max_tokens, limit, top)
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise BodyError(f"seed={seed}: must be a 64-bit integer", "seed")
    return Call(
        model=_text(_field(body, "model", str), "model"),
        sampling=sampling,
        seed=seed,
        n=n,
        stream=_field(body, "stream", bool, False),
        include_usage=bool(options.get("include_usage")),
        logprobs=logprobs,
    )


def _sampling(
    body: Mapping[str, Any], default_max_tokens: int, limit: str, top: int
) -> SamplingParams:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise BodyError("stop must be text or a list of texts", "stop")
    if len(stops) > _MOST_STOPS:
        raise BodyError(f"stop: {len(stops)} texts, at most {_MOST_STOPS}", "stop")
    ids = _field(body, "stop_token_ids", list, None) or []
    if not all(_is_id(token) for token in ids) or len(ids) > MOST_STOP_TOKENS - 2:
        raise BodyError(
            f"stop_token_ids must be at most {MOST_STOP_TOKENS - 2} token ids", "stop_token_ids"
        )
    try:
        return SamplingParams(
            max_tokens=_field(body, limit, int, default_max_tokens),
            temperature=_field(body, "temperature", float, 1.0),
            top_p=_field(body, "top_p", float, 1.0),
            top_k=max(0, _field(body, "top_k", int, 0)),
            min_p=_field(body, "min_p", float, 0.0),
            repetition_penalty=_field(body, "repetition_penalty", float, 1.0),
            logit_bias=_logit_bias(_field(body, "logit_bias", dict, {})),
            stop_tokens=tuple(ids),
            stop=tuple(_text(text, "stop") for text in stops),
            top_logprobs=top,
        )
    except RequestError as error:
        field = str(error).split("=", maxsplit=1)[0].split("[", maxsplit=1)[0]
        raise BodyError(str(error), field) from None


def _logit_bias(given: Mapping[str, Any]) -> dict[int, float]:
    try:
        return {int(token): float(bias) for token, bias in given.items()}
    except (TypeError, ValueError, OverflowError):
        raise BodyError("logit_bias must map token ids to numbers", "logit_bias") from None


def _message(index: int, message: Any) -> Message:
    where = f"messages.{index}"
    if not isinstance(message, dict):
        raise BodyError(f"{where} must be an object", where)
    role = _field(message, "role", str, where=where)
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise BodyError(
            f"{where}.role={role!r}: must be one of {', '.join(ROLES)}", f"{where}.role"
        )
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, where) for part in content)
    calls = _field(message, "tool_calls", list, None, where=where) or []
    if content is None and not (role == "assistant" and calls):
        raise BodyError(f"{where}.content is missing", f"{where}.content")
    if content is not None and not isinstance(content, str):
        raise BodyError(f"{where}.content must be text", f"{where}.content")
    reasoning = _field(message, "reasoning_content", str, None, where=where)
    return Message(
        role,
        _text(content or "", f"{where}.content"),
        None if reasoning is None else _text(reasoning, f"{where}.reasoning_content"),
        tuple(_tool_call(call, where) for call in calls),
    )


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise BodyError(f"{where}.content: only parts of type text are supported", where)
    return _field(part, "text", str, where=f"{where}.content")


def _tool_call(call: Any, where: str) -> ToolCall:
    where = f"{where}.tool_calls"
    if not isinstance(call, dict):
        raise BodyError(f"{where} must hold objects", where)
    function = _field(call, "function", dict, where=where)
    name = _field(function, "name", str, where=f"{where}.function")
    try:
        arguments = json.loads(_field(function, "arguments", str, "{}", where=f"{where}.function"))
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise BodyError(f"{where}.function.arguments must be a JSON object as text", where)
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in arguments.items()
    }
    return ToolCall(
        _text(name, where), tuple((_text(k, where), _text(v, where)) for k, v in texts.items())
    )


def _tool(index: int, tool: Any) -> Mapping[str, Any]:
    where = f"tools.{index}"
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BodyError(f"{where} must be a function with a name", where)
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties", {}) if isinstance(parameters, dict) else None
    if (
        not isinstance(properties, dict)
        or not all(isinstance(own, dict) for own in properties.values())
        or not isinstance(parameters.get("required") or [], list)
    ):
        raise BodyError(f"{where}.function.parameters must be a JSON schema of an object", where)
    _text(json.dumps(function, ensure_ascii=False), where)
    return function


def _field(
    body: Mapping[str, Any],
    name: str,
    kind: type,
    default: Any = _MISSING,
    *,
    where: str = "",
) -> Any:
    """A field of the right type; null counts as left out."""
    full = f"{where}.{name}" if where else name
    value = body.get(name)
    if value is None:
        if default is _MISSING:
            raise BodyError(f"{full} is missing", full)
        return default
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = is_number if kind is float else isinstance(value, kind)
    if kind is int and isinstance(value, bool):
        fits = False
    if not fits:
        names = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
        wanted = names.get(kind, "a list" if kind is list else "an object")
        raise BodyError(f"{full} must be {wanted}", full)
    return value


def _text(text: str, field: str) -> str:
    """Text that UTF-8 can represent: JSON can spell half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BodyError(f"{field} holds half of a surrogate pair", field) from None
    return text


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
