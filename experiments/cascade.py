"""A cascade: stages one after the other, each a public command, from raw text to the last model.

    python -m experiments.cascade --workdir DIR [--config FILE.py] [--only NAME …] [--dry-run]

The config file has `get_steps(workdir)`, which returns `CascadeStep`s. Every step runs in a process
and a folder of its own, `DIR/NAME`; what it prints goes to `DIR/NAME.log` and to the terminal. The
same command again goes on where it stopped: finished steps are left alone, an unfinished one
resumes by itself. At the end `DIR/cascade.md` and `DIR/report.html` say what each evaluation found
and where the time went.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.cascade_report import write_cascade_report
from experiments.cascade_steps import (
    CascadeStep,
    chosen,
    is_finished,
    load_steps,
    mark_finished,
    state_of,
)
from experiments.command_line import run_reporting_errors
from zaya_jax.config import ConfigError
from zaya_jax.training.workdir import check_free, claimed, folder_option

DEFAULT_CONFIG = str(Path(__file__).parent / "configs" / "cascade_small.py")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.cascade",
        description=__doc__,
        epilog="example:\n  python -m experiments.cascade --workdir runs/cascade --dry-run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", required=True, type=folder_option, help="folder of all steps")
    parser.add_argument("--config", default=DEFAULT_CONFIG, help="file with get_steps(workdir)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these steps and no others")
    parser.add_argument("--dry-run", action="store_true", help="print the commands; run nothing")
    arguments = parser.parse_args(argv)
    steps = chosen(load_steps(arguments.config, arguments.workdir), arguments.only)
    if arguments.dry_run:
        for step in steps:
            state = state_of(step, arguments.workdir)
            print(f"{step.name:<24}{state:<10}{shlex.join(step.command(arguments.workdir)[1:])}")
        return 0
    with claimed(arguments.workdir):
        return run(steps, arguments.workdir)


def run(steps: Sequence[CascadeStep], workdir: Path) -> int:
    """Runs what is not finished, then writes the report; the first failure ends it."""
    for step in steps:
        if is_finished(step, workdir):
            print(f"==> {step.name}: finished before", flush=True)
            continue
        print(f"==> {step.name}", flush=True)
        wait_until_free(workdir / step.name)
        start = time.monotonic()
        status = run_step(step, workdir)
        if status:
            print(
                f"error: step {step.name} ended with status {status}; see "
                f"{workdir / step.name}.log; the same command goes on from here",
                file=sys.stderr,
            )
            return status
        mark_finished(step, workdir, time.monotonic() - start)
    print(f"wrote {write_cascade_report(workdir, {step.name: step.group for step in steps})}")
    return 0


def wait_until_free(folder: Path) -> None:
    """Waits for the end of a step whose cascade was killed before it."""
    told = False
    while True:
        try:
            check_free(folder)
            return
        except ConfigError as error:
            if not told:
                print(f"waiting: {error}", flush=True)
            told = True
            time.sleep(0.5)


def run_step(step: CascadeStep, workdir: Path) -> int:
    """Runs one command, passing on what it prints; returns its status.

    A signal to stop is the command's: it saves itself, and its last words are wanted.
    """
    with (workdir / f"{step.name}.log").open("ab") as log:
        process = subprocess.Popen(
            step.command(workdir), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        # A terminal sends Ctrl-C to both; SIGTERM comes to this process alone.
        handlers = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
        }
        try:
            while line := process.stdout.readline():
                log.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
            return process.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
