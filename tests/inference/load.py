"""Clients of all kinds at the same time: patient, slow, fickle and talking nonsense."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from typing import Any

from zaya_jax.inference.request import Completion
from zaya_jax.inference.sequence import Sequence

KEY = "secret"
NONSENSE: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"\xff\xfe\x00", 400),
    (b"[" * 4_000, 400),
    (b'{"model": "' + b"x" * 6_000 + b'"}', 413),
    (b'{"model": "other", "messages": [{"role": "user", "content": "Hi"}]}', 404),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "n": 1000000}', 400),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": 7}], "stream": "yes"}', 400),
]


def body_of(kind: int, *, tokens: int, stream: bool) -> dict[str, Any]:
    """A chat request; the same kind asks for the same answer."""
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "word " * (kind % 5 + 1)}],
        "max_tokens": tokens,
        "seed": kind,
        "stream": stream,
        "enable_thinking": False,
    }


async def post(port: int, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends a chat request; the caller reads as it likes."""
    # A small buffer, so that whoever reads slowly is noticed by the server.
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4_096)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    writer.write(head.encode() + raw)
    await writer.drain()
    return reader, writer


async def read_all(reader: asyncio.StreamReader, pause: float = 0.0) -> tuple[int, str]:
    """Status and everything after the head; a pause before each small piece."""
    received = b""
    while piece := await reader.read(200 if pause else 65_536):
        received += piece
        await asyncio.sleep(pause)
    head, _, rest = received.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), rest.decode("utf-8")


def streamed_text(rest: str) -> str:
    """Content of the events of a chunked body; it must have come to its end."""
    lines = [line for line in rest.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[:-1]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def whole_answer(port: int, kind: int, tokens: int) -> str:
    """The answer while nothing else runs."""
    raw = json.dumps(body_of(kind, tokens=tokens, stream=False)).encode()
    reader, writer = await post(port, raw)
    status, rest = await read_all(reader)
    writer.close()
    assert status == 200, rest
    return json.loads(rest)["choices"][0]["message"]["content"]


async def one_client(number: int, port: int, tokens: int, expected: list[str]) -> None:
    """Every fourth is patient, slow, gone before the end, or talks nonsense."""
    rng = random.Random(number)
    await asyncio.sleep(rng.random() * 0.2)
    if number % 4 == 3:
        raw, status = NONSENSE[number // 4 % len(NONSENSE)]
        reader, writer = await post(port, raw)
        answered, rest = await read_all(reader)
        assert answered == status
        assert json.loads(rest)["error"]["message"]
    else:
        kind = number % len(expected)
        raw = json.dumps(body_of(kind, tokens=tokens, stream=True), ensure_ascii=False).encode()
        reader, writer = await post(port, raw)
        if number % 4 == 2:
            await reader.read(rng.randrange(1, 900))
            writer.transport.abort()
            return
        status, rest = await read_all(reader, pause=0.02 if number % 4 == 1 else 0.0)
        assert status == 200
        found = streamed_text(rest)
        assert found == expected[kind], f"{found!r} instead of {expected[kind]!r}"
    writer.close()


async def storm(port: int, clients: int, tokens: int, expected: list[str]) -> None:
    """All clients at once; the first that is not served as it should be fails it."""
    await asyncio.gather(*(one_client(n, port, tokens, expected) for n in range(clients)))


async def settled(server: Any) -> None:
    """Waits until the server has noticed who is gone; nothing may be held by then."""
    for _ in range(1_500):
        statistics = server.service.engine.statistics
        held = statistics["pages_in_use"] - statistics["remembered_pages"]
        slots = server.service.engine.settings.slots
        if (statistics["free_slots"], held, server.open_choices) == (slots, 0, 0):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"still held: {statistics}, {server.open_choices} open choices")


def live_requests() -> int:
    """Sequences and completions that something still refers to."""
    gc.collect()
    return sum(type(own) in (Sequence, Completion) for own in gc.get_objects())
