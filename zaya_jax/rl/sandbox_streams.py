"""Feeding a process and collecting what it writes, within time and size."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from typing import IO, NamedTuple

CHUNK = 65_536
POLL_SECONDS = 0.02  # how soon the end of a process that keeps its streams open is noticed


class Streams(NamedTuple):
    """What came out, and why it stopped if not by itself."""

    stdout: bytes
    stderr: bytes
    timed_out: bool
    flooded: bool


def exchange(
    process: subprocess.Popen[bytes], stdin: bytes, deadline: float, most_bytes: int
) -> Streams:
    """Writes `stdin`, reads until the process ends, the deadline passes or it writes too much.

    Does not end the process. `deadline` is a value of `time.monotonic()`.
    """
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise ValueError("the process needs pipes for all three of its streams")
    written: dict[IO[bytes], list[bytes]] = {process.stdout: [], process.stderr: []}
    pending, room = memoryview(stdin), most_bytes
    timed_out = flooded = False
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        for stream in written:
            selector.register(stream, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None  # before reading: what it wrote is there by now
            left = deadline - time.monotonic()
            if not ended and left <= 0:
                timed_out = True
                break
            for key, _ in selector.select(0 if ended else min(left, POLL_SECONDS)):
                if key.fileobj is process.stdin:
                    pending = _write(selector, process.stdin, pending)
                    continue
                stream = process.stdout if key.fileobj is process.stdout else process.stderr
                data = os.read(stream.fileno(), min(CHUNK, room + 1))
                written[stream].append(data)
                room -= len(data)
                if not data:
                    selector.unregister(stream)
            flooded = room < 0
            if flooded or (ended and not _readable(selector)):
                break
            if not selector.get_map() and not ended:
                time.sleep(min(POLL_SECONDS, max(left, 0)))
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    stdout, stderr = (b"".join(written[s]) for s in (process.stdout, process.stderr))
    return Streams(stdout[:most_bytes], stderr[:most_bytes], timed_out, flooded)


def _write(selector: selectors.BaseSelector, stream: IO[bytes], pending: memoryview) -> memoryview:
    """Writes what fits; closes the stream after the last byte or when nobody reads it."""
    try:
        pending = pending[os.write(stream.fileno(), pending[:CHUNK]) :] if pending else pending
    except BrokenPipeError:
        pending = pending[:0]
    if not pending:
        selector.unregister(stream)
        stream.close()
    return pending


def _readable(selector: selectors.BaseSelector) -> bool:
    """Whether a stream of an ended process has more to read right now."""
    events = selector.select(0)
    return any(mask & selectors.EVENT_READ for _, mask in events)


def read_line(stream: IO[bytes], unread: bytearray, seconds: float) -> bytes:
    """The next line of a stream; bytes after it stay in `unread` for the next call.

    Raises:
      OSError: when the stream ends or the time is up before the line is complete.
    """
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while b"\n" not in unread:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise TimeoutError(f"no answer for {seconds:g} s")
            data = os.read(stream.fileno(), CHUNK)
            if not data:
                raise BrokenPipeError("it ended without an answer")
            unread += data
    line, _, rest = bytes(unread).partition(b"\n")
    unread[:] = rest
    return line
