"""The server under load: two hundred clients at a time, hostile bodies by schema, SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.inference.load import (
    KEY,
    body_of,
    live_requests,
    post,
    read_all,
    settled,
    storm,
    streamed_text,
    whole_answer,
)
from tests.inference.test_server import httpx, serving
from zaya_jax.inference.server.app import Server, ServerSettings

pytestmark = pytest.mark.slow

TOKENS, KINDS = 24, 9


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, Server]]:
    with serving(ServerSettings("tiny", KEY, most_waiting=400, most_body_bytes=5_000)) as own:
        yield own


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_two_hundred_clients_leave_nothing_behind(running: tuple[str, Server]) -> None:
    url, server = running
    port = int(url.rsplit(":", 1)[1])

    async def rounds() -> list[tuple[int, int]]:
        expected = [await whole_answer(port, kind, TOKENS) for kind in range(KINDS)]
        assert len(set(expected)) == KINDS
        held = []
        for _ in range(4):
            await storm(port, 200, TOKENS, expected)
            await settled(server)
            held.append((live_requests(), resident_bytes()))
        return held

    held = asyncio.run(rounds())
    assert {requests for requests, _ in held} == {0}
    # Allocators and caches fill up in the first rounds; a leak would go on.
    assert held[-1][1] - held[1][1] < 16 << 20


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
# By field: what fits the protocol's schema, so that most bodies go deep before they fail.
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just("tiny"),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
            optional={
                "content": st.text(max_size=20)
                | st.lists(
                    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)})
                ),
                "reasoning_content": st.text(max_size=8),
                "tool_calls": st.lists(
                    st.fixed_dictionaries(
                        {
                            "function": st.fixed_dictionaries(
                                {"name": st.text(max_size=5)},
                                optional={"arguments": JSON.map(json.dumps)},
                            )
                        }
                    ),
                    max_size=2,
                ),
            },
        ),
        min_size=1,
        max_size=3,
    ),
    "prompt": st.text(max_size=20) | st.lists(st.integers(0, 271), max_size=9),
    "max_tokens": st.integers(1, 3),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(0, 2**40),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.5, 2),
    "logit_bias": st.dictionaries(st.integers(0, 300).map(str), st.floats(-100, 100), max_size=2),
    "n": st.integers(1, 3),
    "seed": st.integers(-(2**65), 2**65),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=5),
    "stop_token_ids": st.lists(st.integers(-1, 2**70), max_size=3),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "logprobs": st.booleans() | st.integers(0, 5),
    "top_logprobs": st.integers(0, 25),
    "enable_thinking": st.booleans(),
    "continue_final_message": st.booleans(),
    "tools": st.lists(
        st.fixed_dictionaries(
            {
                "type": st.just("function"),
                "function": st.fixed_dictionaries(
                    {"name": st.text(max_size=5)},
                    optional={"parameters": JSON, "description": JSON},
                ),
            }
        ),
        max_size=2,
    ),
    "tool_choice": st.sampled_from(["auto", "none", "required"]),
}
NEEDED = ("model", "messages", "prompt")


def fitting(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: FITTING[name] for name in (*NEEDED, *names)})


# A few optional fields, and now and then anything at all in some field.
BODIES = st.tuples(
    st.lists(st.sampled_from(sorted(set(FITTING) - set(NEEDED))), max_size=4).flatmap(fitting),
    st.dictionaries(st.sampled_from(sorted(FITTING)), JSON, max_size=1),
).map(lambda both: {"max_tokens": 2, **both[0], **both[1]})


def test_whatever_the_body_the_answer_is_an_object_and_the_server_lives(
    running: tuple[str, Server],
) -> None:
    url, server = running
    statuses: dict[int, int] = {}
    client = httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=300)

    @hypothesis.settings(
        max_examples=600,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(path=st.sampled_from(["chat/completions", "completions"]), body=BODIES)
    def send(path: str, body: dict[str, Any]) -> None:
        answer = client.post(f"{url}/v1/{path}", content=json.dumps(body).encode())
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code in (200, 400, 404, 413), answer.text
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]
        elif body.get("stream") is True:
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            assert answer.json()["choices"]
        assert server.service.failure is None

    send()
    assert statuses[200] > 20
    assert statuses[400] > 20
    asyncio.run(settled(server))


SERVE = """
from tests.inference.models import text_engine
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.server import __main__ as command

command.load_engine = lambda *arguments: (text_engine(), load_tokenizer("bytes"))
command.main(["--checkpoint", "none", "--model-name", "tiny", "--port", "{port}"])
"""


def test_sigterm_loses_no_accepted_request() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVE.replace("{port}", str(port))])
    health = f"http://127.0.0.1:{port}/health"
    for _ in range(600):
        try:
            if httpx.get(health, timeout=5).status_code == 200:
                break
        except httpx.TransportError:
            time.sleep(0.5)

    async def talk() -> list[tuple[int, str]]:
        kinds = range(24)
        sent = [
            await post(port, json.dumps(body_of(k, tokens=60, stream=k % 2 == 0)).encode())
            for k in kinds
        ]
        while True:  # all are accepted, none has ended
            lines = httpx.get(health.replace("health", "metrics"), timeout=60).text.splitlines()
            counts = dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")
            if int(counts["zaya_running"]) + int(counts["zaya_waiting"]) == len(sent):
                break
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        return await asyncio.gather(*(read_all(reader) for reader, _ in sent))

    try:
        answers = asyncio.run(talk())
        for number, (status, rest) in enumerate(answers):
            assert status == 200
            if number % 2 == 0:
                assert streamed_text(rest)
            else:
                assert json.loads(rest)["usage"]["completion_tokens"] > 0
        assert process.wait(timeout=120) in (0, -signal.SIGTERM)  # uvicorn raises it again
        with pytest.raises(httpx.TransportError):
            httpx.get(health, timeout=5)
    finally:
        process.kill()
        process.wait()
