"""Why a job ended, told from its exit status and the end of its output, and what follows."""

from __future__ import annotations

import dataclasses
import enum
import re
import signal


class Failure(enum.StrEnum):
    """Classes of ends that were not wanted."""

    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "disk full"
    NON_FINITE_LOSS = "non-finite loss"
    DATA = "data error"
    CONFIG = "configuration error"
    CHECKPOINT = "checkpoint error"
    COLLECTIVE = "collective error"
    HANG = "hang"
    PREEMPTION = "preemption"
    KILLED = "killed"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Response:
    """What the supervisor does about a class of failures."""

    restarts: bool
    advice: str


RESPONSES: dict[Failure, Response] = {
    Failure.OUT_OF_MEMORY: Response(
        True, "mesh.fsdp, train.microbatches, model.remat or optimizer.offload_state"
    ),
    Failure.DISK_FULL: Response(False, "make room, then run the same command"),
    Failure.NON_FINITE_LOSS: Response(False, "guard.policy=skip or rewind, or a lower rate"),
    Failure.DATA: Response(False, "mend or leave out what the message names"),
    Failure.CONFIG: Response(False, "mend the setting that the message names"),
    Failure.CHECKPOINT: Response(False, "put back a copy of a checkpoint"),
    Failure.COLLECTIVE: Response(True, "if it returns: systems.collectives, systems.doctor"),
    Failure.HANG: Response(True, "the stacks are in the log"),
    Failure.PREEMPTION: Response(True, "the job saved itself"),
    Failure.KILLED: Response(True, "by the system or somebody: look for the kernel's OOM killer"),
    Failure.UNKNOWN: Response(True, "the end of the log says more"),
}

# The first pattern that is found anywhere in the output decides; messages of this project first.
_PATTERNS: tuple[tuple[Failure, str], ...] = (
    (Failure.DISK_FULL, r"no space left on (the )?device|disk quota"),
    (Failure.OUT_OF_MEMORY, r"RESOURCE_EXHAUSTED|out of memory|MemoryError|hipErrorOutOfMemory"),
    (
        Failure.NON_FINITE_LOSS,
        r"(loss|grad_norm|validation loss on \S+) is (nan|-?inf)|bad step \d+",
    ),
    (
        Failure.COLLECTIVE,
        r"(RCCL|NCCL|gloo).*(fail|error|reset|closed|time)|coordination service"
        r"|heartbeat timeout|Connection reset by peer|collective .*(timed out|failed)"
        r"|UNAVAILABLE|DEADLINE_EXCEEDED",
    ),
    (Failure.CHECKPOINT, r"no usable checkpoint|cannot (write|read) \S*checkpoints"),
    (Failure.CONFIG, r"^error: --workdir="),
    (Failure.DATA, r"^error: .*(token|row|batch|document|segment|corrupt)|DataError"),
    (Failure.CONFIG, r"^error: "),
)


def classify(status: int, output: str, *, hung: bool) -> Failure:
    """The class of a failure.

    Args:
      status: exit status as subprocess gives it: negative for a signal.
      output: the end of what the job printed.
      hung: whether the supervisor ended it because it stood still.
    """
    if hung:
        return Failure.HANG
    if status in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return Failure.PREEMPTION
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return Failure.KILLED  # whatever it said before had not ended it
    for failure, pattern in _PATTERNS:
        if re.search(pattern, output, re.IGNORECASE | re.MULTILINE):
            return failure
    return Failure.UNKNOWN
