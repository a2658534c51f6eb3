"""The faults a run must survive, what is to happen, and a supervised run that shows it.

python -m tests.systems.fault_drill     prints the table of docs/fault_tolerance.md
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests" / "experiments" / "tiny_config.py"
STEPS, INTERVAL, FAULT_STEP = 60, 20, 33


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault and what follows."""

    name: str
    fault: str  # of tests/systems/faulty_run.py
    classes: tuple[str, ...]  # that the supervisor tells, one for each failed attempt
    ends: str  # how the supervisor ends
    follows: str  # for the table
    extra: tuple[str, ...] = ()  # arguments of the run
    events: tuple[str, ...] = ()  # that the run or the supervisor must record
    always: bool = False  # at every attempt, not only at the first
    same: bool = True  # the run ends bit-equal to an undisturbed one
    processes: int = 1


_SKIP = ("--config.guard.policy=skip",)
_REWIND = (
    "--config.guard.policy=rewind",
    "--config.guard.spike_factor=3",
    "--config.guard.spike_window=8",
)

CASES = (
    Case("crash (segmentation fault)", "crash", ("unknown",), "done", "restart"),
    Case("kill -9", "kill", ("killed",), "done", "restart"),
    Case("hang", "hang", ("hang",), "done", "stacks into the log, end, restart"),
    Case("out of memory", "oom", ("out of memory",), "done", "restart"),
    Case("SIGTERM to the job", "sigterm", ("preemption",), "done", "it saves itself; restart"),
    Case(
        "crash at every start",
        "crash",
        ("unknown",) * 4,  # the first attempt still reaches a checkpoint
        "gave up",
        "stop after 3 failures without a new checkpoint, with a summary",
        always=True,
        same=False,
    ),
    Case(
        "NaN loss, `guard.policy=stop`",
        "nan",
        ("non-finite loss",),
        "gave up",
        "stop with the step and a mend",
        same=False,
    ),
    Case(
        "NaN loss, `guard.policy=skip`",
        "nan",
        (),
        "done",
        "run again: same bits, so the batch is skipped",
        extra=_SKIP,
        events=("bad loss", "skip"),
        same=False,
    ),
    Case(
        "loss spike, `guard.policy=rewind`",
        "spike",
        (),
        "done",
        "back to the last checkpoint, the data since then left out",
        extra=_REWIND,
        events=("bad loss", "rewind"),
        same=False,
    ),
    Case(
        "corrupt row",
        "data",
        ("data error",),
        "gave up",
        "stop with row, column and value",
        always=True,
        same=False,
    ),
    Case("slow step", "slow", (), "done", "recorded, nothing else", events=("slow",)),
    Case(
        "slow rank, one of two processes",
        "slow-second",
        (),
        "done",
        "the event `straggler` names it, and whether data or device holds it up",
        extra=("--config.data.packing=planned",),
        events=("straggler",),
        same=False,
        processes=2,
    ),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a supervised run did."""

    status: int
    output: str
    supervisor: list[dict[str, Any]]  # its events
    run: list[str]  # names of the run's own events


def run_case(case: Case, workdir: Path, environment: Mapping[str, str]) -> Result:
    """Runs a case under the supervisor."""
    mark = "-" if case.always else str(workdir.with_suffix(".mark"))
    command = [sys.executable, "-m", "zaya_jax.systems.supervise", "--backoff", "0.1"]
    command += ["--hang-seconds", "45" if case.fault == "hang" else "300"]
    command += ["--processes", str(case.processes)]
    command += ["--", sys.executable, "-m", "tests.systems.faulty_run", case.fault]
    command += [str(FAULT_STEP), mark, "--config", str(CONFIG), "--workdir", str(workdir)]
    # Steps take milliseconds here; a save beside them would not be done when the fault comes.
    command += ["--config.checkpoint.asynchronous=false"]
    done = subprocess.run(
        [*command, *case.extra],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=1_200,
    )
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return Result(
        done.returncode,
        done.stdout + done.stderr,
        [json.loads(line) for line in (workdir / "supervisor.jsonl").read_text().splitlines()],
        [record["name"] for record in records if record["kind"] == "event"],
    )


def _result(case: Case) -> str:
    if case.same:
        return "bit-equal to an undisturbed run"
    return "trained to the end" if case.ends == "done" else "last checkpoint intact"


def table() -> str:
    """The cases as they stand in the guide."""
    rows = [
        f"| {case.name} | {', '.join(dict.fromkeys(case.classes)) or '-'} | {case.follows} | "
        f"{_result(case)} |"
        for case in CASES
    ]
    head = ["| fault | told as | what follows | result |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    print(table())
