"""Runs a training job, watches it, and restarts it from its last good checkpoint.

    python -m zaya_jax.systems.supervise -- \\
        python -m experiments.pretrain --workdir runs/large --config.mesh.fsdp=8

The job's `--workdir` gets `supervisor.jsonl` (events), `logs/` (output of every attempt) and is
where heartbeats and checkpoints are looked for. A job that stands still prints its stacks and is
ended. Each failure is classified; some are restarted after a pause that doubles, others stop at
once. Failures in a row that reach no new checkpoint stop the supervisor: a crash loop. SIGTERM and
SIGINT are handed to the job, which saves itself. Jobs on several machines: see `nodes`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ConfigError
from zaya_jax.systems.command import make_parser
from zaya_jax.systems.failures import RESPONSES, Failure, classify
from zaya_jax.systems.job import Ended, Job, free_port, last_line, tee
from zaya_jax.systems.nodes import (
    ON_NODE,
    Cluster,
    NodesError,
    choose_nodes,
    cluster_of,
    process_flags,
)
from zaya_jax.systems.preflight import preflight_environment
from zaya_jax.systems.uptime import EventLog, last_checkpoint, uptime
from zaya_jax.systems.watch import Watch
from zaya_jax.training.heartbeat import read_heartbeats
from zaya_jax.training.workdir import check_free, claimed, folder_option

_POLL_SECONDS = 0.1
SUPERVISOR_LOCK = "supervisor.lock"


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments, command = _parse(argv)
    workdir = arguments.workdir or _workdir_of(command)
    with claimed(workdir, SUPERVISOR_LOCK):
        check_free(workdir)  # of a job that nobody supervises, or no longer
        return supervise(arguments, command, workdir)


def supervise(arguments: argparse.Namespace, command: Sequence[str], workdir: Path) -> int:
    """The same in a folder that no other supervisor and no job has."""
    environment = dict(os.environ)
    events = EventLog(workdir)
    cluster = cluster_of(arguments)
    if arguments.preflight is not None and cluster is None:
        environment |= preflight_environment(workdir, events, shlex.split(arguments.preflight))
    return Supervisor(arguments, command, workdir, environment, events, cluster).run()


class Supervisor:
    """Attempts at one job until it succeeds, cannot succeed, or is asked to stop."""

    def __init__(
        self,
        settings: argparse.Namespace,
        command: Sequence[str],
        workdir: Path,
        environment: Mapping[str, str],
        events: EventLog,
        cluster: Cluster | None = None,
    ) -> None:
        self._cluster, self._nodes = cluster, list[str]()
        self._settings, self._command, self._workdir = settings, command, workdir
        self._environment, self._events = environment, events
        self._started = time.time()
        self._failures: list[Failure] = []
        self._stop_signal: int | None = None

    def run(self) -> int:
        """Supervises to the end; 0 when the job succeeded."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)
        fruitless = 0
        while True:
            before = last_checkpoint(self._workdir)
            try:
                commands = self._commands()
            except NodesError as error:
                return self._give_up(self._failures[-1] if self._failures else None, str(error))
            ended, hung = self._attempt(commands)
            if ended.status == 0 or self._stop_signal is not None:
                return self._finish("done" if ended.status == 0 else "stopped", ended.status)
            failure = classify(ended.status, ended.output, hung=hung)
            self._failures.append(failure)
            reached = last_checkpoint(self._workdir)
            fruitless = 0 if reached > before else fruitless + 1
            self._events.write(
                "failure",
                failure=failure.value,
                process=ended.process,
                status=ended.status,
                message=last_line(ended.output),
                checkpoint=reached,
            )
            response = RESPONSES[failure]
            if not response.restarts:
                print(f"supervisor: the job said: {last_line(ended.output)}", file=sys.stderr)
                return self._give_up(failure, response.advice)
            if fruitless >= self._settings.most_fruitless:
                return self._give_up(failure, f"crash loop, no checkpoint since {reached}")
            if not self._pause(fruitless):
                return self._finish("stopped", ended.status)

    def _commands(self) -> list[list[str]]:
        """Of the next attempt, one for each process."""
        if self._cluster is not None:
            options = self._settings.preflight
            checks = None if options is None else shlex.split(options)
            self._nodes = choose_nodes(self._cluster, checks, self._events)
            self._events.write("nodes", nodes=self._nodes)
            return self._cluster.commands(self._nodes, self._command, len(self._failures))
        processes, coordinator = self._settings.processes, f"127.0.0.1:{free_port()}"
        return [
            [*self._command, *process_flags(coordinator, processes, index)]
            for index in range(processes)
        ]

    def _attempt(self, commands: Sequence[Sequence[str]]) -> tuple[Ended, bool]:
        """Runs the job once; whether it was ended for standing still."""
        attempt = len(self._failures) + 1
        for path in (self._workdir / "heartbeats").glob("*.json"):
            path.unlink()  # of the attempt before
        job = Job(
            commands,
            logs=self._workdir / "logs",
            attempt=attempt,
            environment=self._environment,
        )
        self._events.write("start", attempt=attempt, checkpoint=last_checkpoint(self._workdir))
        try:
            return self._watch(job)
        finally:
            job.kill()

    def _watch(self, job: Job) -> tuple[Ended, bool]:
        watch = Watch(self._settings, self._events, self._nodes)
        while (ended := job.ended()) is None:
            time.sleep(_POLL_SECONDS)
            if self._stop_signal is not None:
                job.stop(self._settings.patience)
                continue
            if watch.stands_still(read_heartbeats(self._workdir)):
                job.dump_stacks()
                tee(job.logs)
                # What starts processes elsewhere ends them when it is asked to, not when killed.
                job.stop(0 if self._cluster is None else self._settings.patience)
                return dataclasses.replace(job.ended() or Ended(0, 1, ""), status=1), True
        if ended.status != 0:
            job.stop(self._settings.patience)  # the others cannot go on alone
        return ended, False

    def _pause(self, fruitless: int) -> bool:
        """Waits before the next attempt; False when asked to stop meanwhile."""
        seconds = min(self._settings.backoff * 2 ** max(fruitless - 1, 0), 600.0)
        self._events.write("restart", in_seconds=seconds)
        print(f"supervisor: {self._failures[-1]}; starting again in {seconds:.0f} s", flush=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._stop_signal is None:
            time.sleep(_POLL_SECONDS)
        return self._stop_signal is None

    def _give_up(self, failure: Failure | None, advice: str) -> int:
        counts = {f"{one}": self._failures.count(one) for one in dict.fromkeys(self._failures)}
        name = "the check of nodes" if failure is None else failure.value
        print(f"supervisor: stopped by {name}: {advice}", file=sys.stderr)
        print(f"supervisor: failures {counts}; logs in {self._workdir / 'logs'}", file=sys.stderr)
        self._events.write("gave up", failure=name, advice=advice, failures=counts)
        return self._finish("gave up", 1)

    def _finish(self, how: str, status: int) -> int:
        figures = uptime(self._workdir, self._started, len(self._failures))
        self._events.write("end", how=how, **dataclasses.asdict(figures))
        between = figures.mean_seconds_between_failures
        shown = "-" if between is None else f"{between:,.0f} s"
        print(
            f"supervisor: {how} after {figures.seconds:,.0f} s; {figures.failures} failures, "
            f"goodput {figures.goodput:.1%}, mean time between failures {shown}",
            flush=True,
        )
        return 128 - status if status < 0 else status

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self._stop_signal = number


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    if "--" not in argv:
        _parser().parse_args(argv)  # --help, or an error about what stands there
        raise ConfigError("give the job after --: supervise [options] -- COMMAND")
    at = list(argv).index("--")
    arguments, command = _parser().parse_args(argv[:at]), list(argv[at + 1 :])
    if not command:
        raise ConfigError("nothing stands after --; give the command of the job")
    cluster_of(arguments)
    if arguments.processes < 1:
        raise ConfigError(f"--processes={arguments.processes}: must be at least 1")
    return arguments, command


def _workdir_of(command: Sequence[str]) -> Path:
    """The folder that the job names itself.

    Raises:
      ConfigError: when it names none.
    """
    for at, word in enumerate(command):
        if word.startswith("--workdir="):
            return Path(word.partition("=")[2])
        if word == "--workdir" and at + 1 < len(command):
            return Path(command[at + 1])
    raise ConfigError("the job names no --workdir; give supervise one, before the --")


def _parser() -> Parser:
    parser = make_parser(
        "supervise",
        "Runs a training job, watches it, restarts it from its last good checkpoint.",
        "-- python -m experiments.pretrain --workdir runs/demo",
    )
    parser.add_argument(
        "--workdir", type=folder_option, help="of the job; default: the one it names"
    )
    parser.add_argument("--processes", type=int, default=1, help="processes of this machine")
    parser.add_argument("--hang-seconds", type=float, default=600, help="without a step: a hang")
    parser.add_argument("--start-seconds", type=float, default=3600, help="before the first step")
    parser.add_argument("--slow-factor", type=float, default=3, help="times the usual step: slow")
    parser.add_argument(
        "--straggler-factor", type=float, default=1.5, help="times the other processes: a straggler"
    )
    parser.add_argument("--backoff", type=float, default=10, help="seconds before a restart")
    parser.add_argument(
        "--most-fruitless", type=int, default=3, help="failures in a row without a new checkpoint"
    )
    parser.add_argument("--patience", type=float, default=60, help="seconds to save after SIGTERM")
    parser.add_argument(
        "--preflight",
        nargs="?",
        const="",
        metavar="OPTIONS",
        help="check every device first; options of zaya_jax.systems.preflight in one word",
    )
    parser.add_argument("--nodes", default="", help="one process on each: a,b or node[1-4]")
    parser.add_argument("--on-node", default=ON_NODE, help="runs {command} on {node}")
    parser.add_argument("--use", type=int, default=0, help="nodes of a job; 0: all that pass")
    parser.add_argument("--port", type=int, default=8476, help="of the first node")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
