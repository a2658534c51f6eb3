"""Programs nobody trusts: run in a bubblewrap sandbox with limits, or refused.

A program sees a read-only `/usr`, a Python, an empty `/tmp` in memory, its own `/proc` and nothing
else: no network, no other processes, no environment, no descriptors but its three streams, no
capabilities. Limits hold for CPU and wall time, memory of each process, number of processes, size
of files, output. When the program ends, everything it started dies with its process namespace.

Started by root, every run gets a user id of its own that nobody else has, for the limit on
processes does not hold for root; otherwise a user namespace. The set-up itself is in
`zaya_jax.rl.sandbox_command`. Expected outputs of tests stay outside: compare there.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox_command import (
    PROGRAM,
    Limits,
    bubblewrap_command,
    missing_tools,
    unprotected_command,
    user_ids,
)
from zaya_jax.rl.sandbox_streams import exchange


class SandboxError(RLError):
    """The sandbox cannot be set up here."""


class Verdict(enum.StrEnum):
    """How a program ended."""

    OK = "ok"  # exit status 0
    FAILED = "failed"  # another exit status
    CRASHED = "crashed"  # killed by a signal of its own making
    TIMEOUT = "timeout"  # too much wall or CPU time
    OUTPUT_LIMIT = "output_limit"  # wrote more than allowed


class Outcome(NamedTuple):
    """What a program did."""

    verdict: Verdict
    exit_code: int  # 128 + signal for a signal
    stdout: bytes
    stderr: bytes
    seconds: float  # wall time


class Sandbox:
    """Runs Python programs one at a time per call; calls from several threads are fine."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        packages: Sequence[Path] = (),
        unsafe: bool = False,
    ) -> None:
        """Checks that this machine can isolate programs.

        Args:
          limits: of each program.
          packages: folders of Python packages the programs may import, read-only.
          unsafe: run without any isolation where bubblewrap is missing. The limits except the one
            on processes hold, but programs can read, write and send whatever this process can.

        Raises:
          SandboxError: where bubblewrap or its helpers are missing and `unsafe` is not set.
        """
        self.limits = limits or Limits()
        self.packages = tuple(packages)
        missing = missing_tools()
        if missing and not unsafe:
            raise SandboxError(
                f"model-written programs need {', '.join(missing)}, not found on PATH: install "
                "bubblewrap and util-linux, or pass unsafe=True to run them without protection"
            )
        self.isolated = not missing

    def run(self, source: str, stdin: bytes = b"", *, arguments: Sequence[str] = ()) -> Outcome:
        """Runs a Python program to its end or its limits.

        Raises:
          SandboxError: when the sandbox itself cannot start, which is no fault of the program.
        """
        with self._prepared(source) as prepared:
            outcome, killed = self._run([*prepared.command, *arguments], stdin, prepared)
            if prepared.status is not None and not killed and not _has_ended(prepared.status):
                raise SandboxError(
                    "bubblewrap could not set up a sandbox: "
                    f"{outcome.stderr.decode(errors='replace').strip() or 'no message'}"
                )
            return outcome

    @contextlib.contextmanager
    def started(self, source: str) -> Iterator[subprocess.Popen[bytes]]:
        """A program that runs while the context lasts; no wall clock, no limit on its output."""
        with self._prepared(source) as prepared:
            process = _start(prepared.command, prepared)
            try:
                yield process
            finally:
                _kill(process)
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        with contextlib.suppress(BrokenPipeError):
                            stream.close()

    def run_many(
        self, programs: Iterable[tuple[str, bytes]], *, workers: int | None = None
    ) -> list[Outcome]:
        """Runs (source, stdin) pairs side by side; outcomes come in the order of the programs.

        Starting a sandbox is mostly waiting, so that more workers than cores pay off.
        """
        workers = workers or 4 * (os.cpu_count() or 1)
        with ThreadPoolExecutor(workers, thread_name_prefix="sandbox") as pool:
            return list(pool.map(lambda program: self.run(*program), programs))

    @contextlib.contextmanager
    def _prepared(self, source: str) -> Iterator[_Prepared]:
        """The program where a process can reach it, and the command line that runs it."""
        with contextlib.ExitStack() as stack:
            if not self.isolated:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unsafe-")))
                (folder / PROGRAM.name).write_text(source, encoding="utf-8")
                command = unprotected_command(self.limits, folder / PROGRAM.name, self.packages)
                yield _Prepared(command, folder, (), None)
                return
            program = os.memfd_create("program")
            stack.callback(os.close, program)
            with open(program, "wb", closefd=False) as file:
                file.write(source.encode("utf-8", errors="replace"))
            os.lseek(program, 0, os.SEEK_SET)
            status, status_writer = os.pipe()
            stack.callback(os.close, status)
            stack.callback(os.close, status_writer)
            user = stack.enter_context(user_ids.borrowed()) if os.getuid() == 0 else None
            command = bubblewrap_command(self.limits, program, status_writer, user, self.packages)
            yield _Prepared(command, Path("/"), (program, status_writer), status)

    def _run(
        self, command: Sequence[str], stdin: bytes, prepared: _Prepared
    ) -> tuple[Outcome, bool]:
        """The outcome, and whether we ended the program."""
        start = time.monotonic()
        process = _start(command, prepared)
        try:
            streams = exchange(
                process, stdin, start + self.limits.wall_seconds, self.limits.output_bytes
            )
        finally:
            _kill(process)
        verdict, exit_code = _verdict(process.returncode, streams.timed_out, streams.flooded)
        seconds = time.monotonic() - start
        outcome = Outcome(verdict, exit_code, streams.stdout, streams.stderr, seconds)
        return outcome, streams.timed_out or streams.flooded


class _Prepared(NamedTuple):
    command: list[str]
    folder: Path
    descriptors: tuple[int, ...]  # for the program's set-up
    status: int | None  # where bubblewrap reports


def _start(command: Sequence[str], prepared: _Prepared) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=prepared.folder,
        env={},
        pass_fds=prepared.descriptors,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left: bubblewrap takes its namespace along."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _verdict(returncode: int, timed_out: bool, flooded: bool) -> tuple[Verdict, int]:
    exit_code = 128 - returncode if returncode < 0 else returncode
    if flooded:
        return Verdict.OUTPUT_LIMIT, exit_code
    if timed_out or exit_code == 128 + signal.SIGXCPU:
        return Verdict.TIMEOUT, exit_code
    if exit_code > 128:
        return Verdict.CRASHED, exit_code
    return (Verdict.OK if exit_code == 0 else Verdict.FAILED), exit_code


def _has_ended(status: int) -> bool:
    """Whether bubblewrap reported that the program itself ended, rather than its own set-up."""
    os.set_blocking(status, False)
    try:
        text = os.read(status, 65_536).decode()
    except BlockingIOError:
        return False
    return any("exit-code" in json.loads(line) for line in text.splitlines())
