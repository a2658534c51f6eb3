"""One attempt at running a command, in one or several processes of this machine."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL_BYTES = 16_384  # of a log, for classification
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # here, and as shells and srun report it


@dataclasses.dataclass(frozen=True)
class Ended:
    """How an attempt ended: the first process that failed, or 0."""

    process: int
    status: int
    output: str  # the end of that process' log


class Job:
    """The processes of one attempt; each writes its own log."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        logs: Path,
        attempt: int,
        environment: Mapping[str, str],
    ) -> None:
        """Starts one process for each command."""
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = [
            logs / f"attempt-{attempt}-process-{index}.log" for index in range(len(commands))
        ]
        self._processes: list[subprocess.Popen[bytes]] = []
        for command, log in zip(commands, self._logs, strict=True):
            with log.open("wb") as file:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=dict(environment),
                        start_new_session=True,
                    )
                )

    @property
    def logs(self) -> list[Path]:
        """One for each process."""
        return self._logs

    def ended(self) -> Ended | None:
        """None while all run or some have succeeded; otherwise how it ended."""
        statuses = [process.poll() for process in self._processes]
        # A process that was killed is the cause; those that then lost it come second.
        failed = [(i, s) for i, s in enumerate(statuses) if s]
        if failed:
            index, status = min(failed, key=lambda pair: (pair[1] not in _KILLED, pair[0]))
            return Ended(index, status, self._tail(index))
        if all(status == 0 for status in statuses):
            return Ended(0, 0, self._tail(0))
        return None

    def signal(self, number: int) -> None:
        """Sends a signal to every process that still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def dump_stacks(self) -> None:
        """Has every process print its stacks into its log."""
        self.signal(signal.SIGUSR1)
        time.sleep(1.0)

    def stop(self, patience: float) -> None:
        """Asks the processes to save and end; kills them and their children after `patience`."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and any(p.poll() is None for p in self._processes):
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """Ends the processes and their children at once."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _tail(self, index: int) -> str:
        with self._logs[index].open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            return file.read().decode("utf-8", "replace")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_line(output: str) -> str:
    """The last line that says something, for the event log."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def tee(logs: Sequence[Path]) -> None:
    """Copies the end of every log to standard error, for people who watch."""
    for log in logs:
        sys.stderr.write(f"--- {log}\n")
        sys.stderr.write("".join(log.read_text(errors="replace").splitlines(True)[-15:]))
