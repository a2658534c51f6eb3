"""The server as the official client sees it, and as those do who send it nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.inference.load import KEY, live_requests, settled, storm, whole_answer
from tests.inference.models import text_engine
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.service import EngineService

httpx = pytest.importorskip("httpx2", reason="comes with openai")
openai = pytest.importorskip("openai", reason="needs the test extra")
uvicorn = pytest.importorskip("uvicorn", reason="needs the serve extra")

from zaya_jax.inference.server.app import Server, ServerSettings  # noqa: E402 after the skips

BYTES = load_tokenizer("bytes")
USER = [{"role": "user", "content": "Hi"}]


@contextlib.contextmanager
def serving(settings: ServerSettings) -> Iterator[tuple[str, Server]]:
    with EngineService(text_engine()) as service, socket.socket() as listening:
        server = Server(service, BYTES, settings)
        listening.bind(("127.0.0.1", 0))
        runner = uvicorn.Server(uvicorn.Config(server.application(), log_level="error"))
        thread = threading.Thread(target=runner.run, args=([listening],))
        thread.start()
        try:
            while not runner.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", server
        finally:
            runner.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Server]]:
    with serving(ServerSettings("tiny", KEY, most_waiting=4, most_body_bytes=5_000)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: tuple[str, Server]) -> Any:
    return openai.OpenAI(base_url=f"{server[0]}/v1", api_key=KEY, max_retries=0)


def chat(client: Any, **changes: Any) -> Any:
    body: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 12, "seed": 3}
    return client.chat.completions.create(**{**body, **changes})


def test_a_stream_says_what_the_whole_answer_says(client: Any) -> None:
    never = [BYTES.special_tokens[name] for name in ("<think>", "</think>", "<|im_end|>")]
    for thinking in (True, False):
        extra: dict[str, Any] = {"logit_bias": {str(token): -100 for token in never}}
        extra["extra_body"] = {"chat_template_kwargs": {"enable_thinking": thinking}}
        whole = chat(client, **extra)
        chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **extra))
        texts = {"content": "", "reasoning_content": ""}
        for chunk in chunks:
            for choice in chunk.choices:
                for name in texts:
                    texts[name] += getattr(choice.delta, name, None) or ""
        message = whole.choices[0].message
        assert texts["content"] == (message.content or "")
        assert texts["reasoning_content"] == getattr(message, "reasoning_content", "")
        assert bool(texts["reasoning_content"]) == thinking
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert whole.usage.prompt_tokens + whole.usage.completion_tokens == whole.usage.total_tokens
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
        assert reasons[-1] == whole.choices[0].finish_reason
        assert reasons[:-1] == [None] * (len(reasons) - 1)


def test_choices_have_seeds_of_their_own_and_are_reproducible(client: Any) -> None:
    first, again = (chat(client, n=3, extra_body={"enable_thinking": False}) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]
    assert again.usage.prompt_tokens_details.cached_tokens % 16 == 0


def test_text_completions_are_the_engines(client: Any, server: Any) -> None:
    answer = client.completions.create(
        model="tiny", prompt="abc", max_tokens=6, temperature=0, logprobs=2
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 6
    assert "".join(choice.logprobs.tokens[:1]) == choice.text[: len(choice.logprobs.tokens[0])]
    ids = [BYTES.bos_id, *BYTES.encode("abc")]
    same = client.completions.create(model="tiny", prompt=ids, max_tokens=6, temperature=0)
    assert same.choices[0].text == choice.text


def test_log_probabilities_come_with_alternatives(client: Any) -> None:
    content = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 12
    for entry in content:
        assert entry.logprob <= 0
        values = [other.logprob for other in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert bytes(entry.bytes).decode() == entry.token


def test_models_health_and_metrics(client: Any, server: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert httpx.get(f"{server[0]}/health").json()["status"] == "ok"
    lines = httpx.get(f"{server[0]}/metrics").text.splitlines()
    counts = {line.split()[0]: float(line.split()[1]) for line in lines if line[0] != "#"}
    assert counts['zaya_requests_total{status="200"}'] >= 1
    assert counts["zaya_completion_tokens_total"] >= 12


WRONG: list[tuple[Any, int, str | None]] = [
    (b"{", 400, None),
    (b"\xff\xfe", 400, None),
    (b"[1]", 400, None),
    (b"[" * 3_000, 400, None),
    (b'{"model": "' + b"x" * 6_000 + b'"}', 413, None),
    ({"messages": USER}, 400, "model"),
    ({"model": "other", "messages": USER}, 404, "model"),
    ({"model": "tiny"}, 400, "messages"),
    ({"model": "tiny", "messages": []}, 400, "messages"),
    ({"model": "tiny", "messages": ["Hi"]}, 400, "messages.0"),
    ({"model": "tiny", "messages": [{"role": "boss", "content": ""}]}, 400, "messages.0.role"),
    ({"model": "tiny", "messages": [{"role": "user"}]}, 400, "messages.0.content"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', 400,
     "messages.0.content"),
    ({"model": "tiny", "messages": USER, "n": 10**9}, 400, "n"),
    ({"model": "tiny", "messages": USER, "n": 9}, 429, None),
    ({"model": "tiny", "messages": USER, "max_tokens": -1}, 400, "max_tokens"),
    ({"model": "tiny", "messages": USER, "max_tokens": 10**9}, 400, None),
    ({"model": "tiny", "messages": USER, "temperature": "hot"}, 400, "temperature"),
    ({"model": "tiny", "messages": USER, "stream": 1}, 400, "stream"),
    ({"model": "tiny", "messages": USER, "stop": [1]}, 400, "stop"),
    ({"model": "tiny", "messages": USER, "logit_bias": {"x": 1}}, 400, "logit_bias"),
    ({"model": "tiny", "messages": USER, "logit_bias": {"9999": 1}}, 400, None),
    ({"model": "tiny", "messages": USER, "tools": [{}]}, 400, "tools.0"),
    ({"model": "tiny", "messages": USER, "tools": [{"function": {"name": "f", "parameters": {
        "properties": {"a": {}}, "required": 1}}}]}, 400, "tools.0"),
    ({"model": "tiny", "messages": USER, "temperature": 10**400}, 400, "temperature"),
    ({"model": "tiny", "messages": USER, "logit_bias": {"1": 10**400}}, 400, "logit_bias"),
    ({"model": "tiny", "messages": USER, "top_k": 10**20}, 400, "top_k"),
    ({"model": "tiny", "messages": USER, "stop_token_ids": [10**20]}, 400, None),
    ({"model": "tiny", "messages": USER, "response_format": {"type": "json_object"}}, 400,
     "response_format"),
    ({"model": "tiny", "messages": USER, "top_logprobs": 2}, 400, "top_logprobs"),
    ({"model": "tiny", "messages": USER, "tool_choice": "required"}, 400, "tool_choice"),
    ({"model": "tiny", "messages": USER, "tool_choice": {"type": "function", "function": {
        "name": "f"}}}, 400, "tool_choice"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "field"), WRONG, ids=range(len(WRONG)))
def test_nonsense_gets_an_error_object(
    server: tuple[str, Server], body: Any, status: int, field: str | None
) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{server[0]}/v1/chat/completions", content=raw, headers=headers)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["message"]
    assert error["param"] == field
    assert ("retry-after" in answer.headers) == (status == 429)


def test_a_model_that_is_not_there_is_known_by_its_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="other", messages=USER)
    assert caught.value.code == "model_not_found"


def test_strangers_and_unknown_paths_are_turned_away(server: tuple[str, Server]) -> None:
    stranger = openai.OpenAI(base_url=f"{server[0]}/v1", api_key="guess", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        chat(stranger)
    answer = httpx.post(f"{server[0]}/v1/embeddings")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


def test_who_hangs_up_reads_slowly_or_talks_nonsense_disturbs_nobody(
    server: tuple[str, Server],
) -> None:
    port = int(server[0].rsplit(":", 1)[1])

    async def run() -> None:
        expected = [await whole_answer(port, kind, 12) for kind in range(3)]
        await storm(port, 10, 12, expected)
        await settled(server[1])

    asyncio.run(run())
    assert live_requests() == 0


def test_a_fault_is_an_error_object_and_a_slow_body_is_given_up(
    server: tuple[str, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    monkeypatch.setattr(
        server[1], "settings", dataclasses.replace(server[1].settings, body_seconds=0.0)
    )

    def dribble() -> Iterator[bytes]:
        yield b"{"
        time.sleep(0.2)
        yield b"}"

    url = f"{server[0]}/v1/completions"
    assert httpx.post(url, content=dribble(), headers=headers).status_code == 408
    monkeypatch.undo()

    def fail(body: Any) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr("zaya_jax.inference.server.app.text_call", fail)
    answer = httpx.post(url, content=b"{}", headers=headers)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
