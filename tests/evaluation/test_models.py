"""What is asked of a server, what is read from its answers, and what its failures mean."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import pytest

from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.models import OpenAIModel, RefusedError, Sample, SampleError
from zaya_jax.evaluation.settings import SamplingConfig

openai = pytest.importorskip("openai", reason="needs the serve extra")

PLAIN = SamplingConfig(max_tokens=9)


def answered(content: str | None, reason: str = "stop", **message: Any) -> Any:
    choice = types.SimpleNamespace(
        message=types.SimpleNamespace(content=content, **message), finish_reason=reason
    )
    usage = types.SimpleNamespace(completion_tokens=7, prompt_tokens=3)
    return types.SimpleNamespace(choices=[choice], usage=usage)


def asked(reply: Any, sampling: SamplingConfig = PLAIN) -> tuple[Sample, dict[str, Any]]:
    """The sample that a reply gives, and what was sent for it."""
    sent: dict[str, Any] = {}

    async def create(**fields: Any) -> Any:
        sent.update(fields)
        if isinstance(reply, Exception):
            raise reply
        return reply

    model = OpenAIModel("http://127.0.0.1:1/v1", "tiny")
    completions = types.SimpleNamespace(create=create)
    model._client = types.SimpleNamespace(chat=types.SimpleNamespace(completions=completions))
    return asyncio.run(model.sample("Why?", sampling, 5)), sent


def test_reasoning_is_found_whether_the_server_splits_it_off_or_not() -> None:
    expected = Sample("It is.", "hm", 7, 3, False)
    assert asked(answered("It is.", reasoning_content="hm"))[0] == expected
    assert asked(answered("<think>\nhm\n</think>\n\nIt is."))[0] == expected
    assert asked(answered("hm\n</think>\n\nIt is."))[0] == expected
    cut = asked(answered(None, "length", reasoning_content="hm"))[0]
    assert cut == Sample("", "hm", 7, 3, True)


def test_only_what_matters_is_sent_beyond_the_protocol() -> None:
    _, sent = asked(answered("x"))
    assert sent["extra_body"] is None
    assert (sent["max_tokens"], sent["seed"], sent["top_p"]) == (9, 5, 0.95)
    _, sent = asked(answered("x"), SamplingConfig(top_k=20, thinking=False))
    assert sent["extra_body"] == {
        "top_k": 20,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_failures_are_told_apart() -> None:
    request = types.SimpleNamespace()

    def status(kind: Any, code: int) -> Any:
        error = kind.__new__(kind)
        Exception.__init__(error, f"status {code}")
        error.request, error.status_code = request, code
        return error

    for error, meaning in [
        (status(openai.BadRequestError, 400), RefusedError),
        (status(openai.UnprocessableEntityError, 422), RefusedError),
        (status(openai.AuthenticationError, 401), EvaluationError),
        (status(openai.NotFoundError, 404), EvaluationError),
        (status(openai.RateLimitError, 429), SampleError),
        (status(openai.InternalServerError, 500), SampleError),
        (status(openai.APIConnectionError, 0), SampleError),
    ]:
        with pytest.raises(meaning, match=r"127\.0\.0\.1:1/v1: status"):
            asked(error)


def test_a_server_that_does_not_count_is_refused() -> None:
    reply = answered("x")
    reply.usage = None
    with pytest.raises(EvaluationError, match="does not count tokens"):
        asked(reply)
