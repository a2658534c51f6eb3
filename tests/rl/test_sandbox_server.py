"""A sandboxed function that is called many times, by requests that attack it too."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from zaya_jax.rl.sandbox import Sandbox
from zaya_jax.rl.sandbox_command import Limits
from zaya_jax.rl.sandbox_server import CallError, SandboxServer, ServerError

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)
SOURCE = """
import os
state = []
def handle(request):
    state.append(request)
    exec(request.get("code", ""))
    return {"calls": len(state), "echo": request["x"], "tmp": os.listdir("/tmp")}
"""
LIMITS = Limits(cpu_seconds=10_000, processes=16)


@pytest.fixture(scope="module")
def server() -> Iterator[SandboxServer]:
    with SandboxServer(SOURCE, Sandbox(LIMITS)) as made:
        yield made


def test_calls_are_answered_and_leave_no_state(server: SandboxServer) -> None:
    for x in ("a", "naïve\n", "b"):
        assert server.call({"x": x}, seconds=30) == {"calls": 1, "echo": x, "tmp": []}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended without an answer"),
        ("import os; os.abort()", "ended without an answer"),
        ("request['x'] = {1}", "ended without an answer"),  # not JSON
        ("request['x'] = 'x' * 2**21", "ended without an answer"),  # too much
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("import socket; socket.create_connection(('1.1.1.1', 53), 2)", "OSError"),
    ],
)
def test_a_failing_call_is_reported_and_the_server_lives_on(
    server: SandboxServer, code: str, message: str
) -> None:
    with pytest.raises(CallError, match=message):
        server.call({"x": 1, "code": code}, seconds=30)
    assert server.call({"x": 2}, seconds=30)["echo"] == 2


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(99)"])
def test_a_call_that_takes_too_long_is_ended(server: SandboxServer, code: str) -> None:
    start = time.monotonic()
    with pytest.raises(CallError, match=r"took more than 1 s|ended without"):
        server.call({"x": 1, "code": code}, seconds=1)
    assert time.monotonic() - start < 10


def test_what_a_call_starts_dies_with_it(server: SandboxServer) -> None:
    # Sixteen processes are allowed: left-overs would soon use them up.
    code = "import time\nif os.fork() == 0: os.setsid(), time.sleep(999)"
    for _ in range(20):
        server.call({"x": 1, "code": code}, seconds=30)


def test_printing_does_not_forge_an_answer(server: SandboxServer) -> None:
    code = """
for descriptor in range(3, 20):
    try: os.write(descriptor, b'{"result": 5}')
    except OSError: pass
print('{"result": 6}')
"""
    with pytest.raises(CallError):
        server.call({"x": 1, "code": code}, seconds=30)
    assert server.call({"x": 3}, seconds=30)["echo"] == 3


def test_a_call_that_kills_the_server_fails_and_the_next_finds_a_new_one(
    server: SandboxServer,
) -> None:
    with pytest.raises(ServerError, match="died"):
        server.call(
            {"x": 1, "code": "os.kill(os.getppid(), 9); import time; time.sleep(9)"}, seconds=5
        )
    assert server.call({"x": 4}, seconds=30)["echo"] == 4


def test_the_memory_of_the_server_is_out_of_reach(server: SandboxServer) -> None:
    with pytest.raises(CallError, match="PermissionError"):
        server.call({"x": 1, "code": "open(f'/proc/{os.getppid()}/mem', 'r+b')"}, seconds=30)


def test_a_call_may_not_have_more_cpu_time_than_the_sandbox() -> None:
    with SandboxServer(SOURCE, Sandbox(Limits(cpu_seconds=2))) as short:
        assert short.call({"x": 1}, seconds=60)["echo"] == 1
        with pytest.raises(CallError, match="ended without an answer"):
            short.call({"x": 1, "code": "while True: pass"}, seconds=60)


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerError, match=r"(?s)cannot start: .*No module named 'nowhere'"):
        SandboxServer("import nowhere", Sandbox(LIMITS)).call({}, seconds=5)
