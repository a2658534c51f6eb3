"""A function in the sandbox that is called many times: imports once, forks for every call.

Verifiers import large libraries and evaluate text that a model wrote. The server's source defines

    def handle(request: dict) -> dict

with JSON values in and out. Every call runs in a fork of its own with CPU and wall limits, and
whatever it started is killed before the next one. A server that hangs or dies is started again.
Text that `handle` evaluates can forge the result of its own call, never that of another.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from types import TracebackType
from typing import Any

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox import Sandbox
from zaya_jax.rl.sandbox_streams import read_line


class ServerError(RLError):
    """The server cannot start or has died; the next call will start another."""


class CallError(ServerError):
    """The function raised, took too long or ended without a value, for this request."""


_LOOP = """

def _serve():
    import ctypes, json, os, resource, select, signal, sys, time, traceback
    answers, requests = os.dup(1), os.dup(0)
    os.close(0), os.dup2(2, 1)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: calls cannot read or change us
    alone = sys.argv[0] == "/program/main.py" and os.getppid() == 1  # in a process namespace
    def call(request, seconds, writer):
        limit, most = max(1, int(seconds)), resource.getrlimit(resource.RLIMIT_CPU)[1]
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        try:
            result = {"result": handle(request)}
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            result = {"error": f"{type(error).__name__}: {error} (line {last.lineno})"[:500]}
        with os.fdopen(writer, "w") as file:
            file.write(json.dumps(result) + "\\n")
    stream = os.fdopen(requests, "rb")
    os.write(answers, b"{}\\n")
    for line in stream:
        request, seconds = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(answers), os.close(stream.fileno()), os.close(reader)
            os.setsid()
            call(request, seconds, writer)
            os._exit(0)
        os.close(writer)
        data, deadline, late = b"", time.monotonic() + seconds, False
        while len(data) <= MOST_BYTES:
            left = max(deadline - time.monotonic(), 0)
            late = not select.select([reader], [], [], left)[0]
            part = b"" if late else os.read(reader, 65536)
            data += part
            if not part or part.endswith(b"\\n"):  # others may hold the pipe open
                break
        os.close(reader)
        os.kill(-1 if alone else child, signal.SIGKILL)  # everything but us and the first process
        os.waitpid(child, 0)
        if late:
            data = json.dumps({"error": f"took more than {seconds:g} s"}).encode()
        try:
            json.loads(data)
        except ValueError:
            data = b'{"error": "ended without an answer"}'
        os.write(answers, data.strip().replace(b"\\n", b" ") + b"\\n")
_serve()
"""
MOST_ANSWER_BYTES = 2**20
START_SECONDS = 120.0
GRACE_SECONDS = 10.0  # beyond a call's own limit, before the server is taken for dead


class SandboxServer:
    """Calls are answered one at a time; use several servers for more."""

    def __init__(self, source: str, sandbox: Sandbox) -> None:
        """Starts nothing yet.

        Args:
          source: Python text that defines `handle`.
          sandbox: limits for the server as a whole; CPU time is limited by call.
        """
        self._source = source + _LOOP.replace("MOST_BYTES", str(MOST_ANSWER_BYTES))
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._stack: contextlib.ExitStack | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = bytearray()

    def call(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """The value of `handle(request)`.

        Raises:
          CallError: when `handle` raises, takes too long or gives nothing that JSON can hold.
          ServerError: when the server cannot start or dies, of this call or by itself.
        """
        with self._lock:
            process = self._process or self._start()
            line = json.dumps([request, seconds]).encode() + b"\n"
            try:
                if process.stdin is None or process.stdout is None:
                    raise OSError("no pipes")
                process.stdin.write(line)
                process.stdin.flush()
                answer = read_line(process.stdout, self._unread, seconds + GRACE_SECONDS)
            except OSError as error:
                self._stop()
                raise ServerError(f"the sandboxed verifier died: {error}") from error
            except BaseException:  # half an exchange: what comes next would answer this call
                self._stop()
                raise
            reply = json.loads(answer)
        if "error" in reply:
            raise CallError(str(reply["error"]))
        return reply["result"]

    def _start(self) -> subprocess.Popen[bytes]:
        self._stack, self._unread = contextlib.ExitStack(), bytearray()
        process = self._stack.enter_context(self._sandbox.started(self._source))
        try:
            if process.stdout is None:
                raise OSError("no pipes")
            read_line(process.stdout, self._unread, START_SECONDS)
        except OSError as error:
            message = b""
            if process.stderr is not None:
                process.kill()
                message = process.stderr.read()
            self._stop()
            raise ServerError(
                f"a sandboxed verifier cannot start: {error} "
                f"{message.decode(errors='replace').strip()[-300:]}"
            ) from error
        self._process = process
        return process

    def _stop(self) -> None:
        if self._stack is not None:
            self._stack.close()
        self._stack = self._process = None

    def close(self) -> None:
        """Ends the server; a later call would start another."""
        with self._lock:
            self._stop()

    def __enter__(self) -> SandboxServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
