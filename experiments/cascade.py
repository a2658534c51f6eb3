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
import dataclasses
import importlib.util
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.cascade_report import FINISHED, write_cascade_report
from experiments.command_line import run_reporting_errors
from zaya_jax.config import ConfigError

DEFAULT_CONFIG = str(Path(__file__).parent / "configs" / "cascade_small.py")


@dataclasses.dataclass(frozen=True)
class CascadeStep:
    """One command.

    Attributes:
      name: of the step and its folder.
      module: of the command, `experiments.pretrain` for example; it is given `--workdir DIR/NAME`.
      arguments: what else it is given.
      group: evaluations of one group differ by their seed alone; the report averages them.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    group: str = ""

    def command(self, workdir: Path) -> list[str]:
        """As a process is started."""
        place = ["--workdir", str(workdir / self.name)]
        return [sys.executable, "-m", self.module, *place, *self.arguments]


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.cascade",
        description=__doc__,
        epilog="example:\n  python -m experiments.cascade --workdir runs/cascade --dry-run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", required=True, type=Path, help="folder of all steps")
    parser.add_argument("--config", default=DEFAULT_CONFIG, help="file with get_steps(workdir)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these steps and no others")
    parser.add_argument("--dry-run", action="store_true", help="print the commands; run nothing")
    arguments = parser.parse_args(argv)
    steps = chosen(load_steps(arguments.config, arguments.workdir), arguments.only)
    if arguments.dry_run:
        for step in steps:
            state = "finished" if is_finished(step, arguments.workdir) else "to do"
            print(f"{step.name:<24}{state:<10}{shlex.join(step.command(arguments.workdir)[1:])}")
        return 0
    return run(steps, arguments.workdir)


def run(steps: Sequence[CascadeStep], workdir: Path) -> int:
    """Runs what is not finished, then writes the report; the first failure ends it."""
    workdir.mkdir(parents=True, exist_ok=True)
    for step in steps:
        if is_finished(step, workdir):
            print(f"==> {step.name}: finished before", flush=True)
            continue
        print(f"==> {step.name}", flush=True)
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


def run_step(step: CascadeStep, workdir: Path) -> int:
    """Runs one command, passing on what it prints; returns its status."""
    with (workdir / f"{step.name}.log").open("ab") as log:
        process = subprocess.Popen(
            step.command(workdir), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        try:
            # Ctrl-C reaches the command too; it saves itself, and its last words are wanted.
            while line := process.stdout.readline():
                log.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            return 130


def is_finished(step: CascadeStep, workdir: Path) -> bool:
    """Whether the step has ended well before, with the same arguments.

    Raises:
      ConfigError: when it ended well with other arguments: what follows would not fit.
    """
    path = workdir / step.name / FINISHED
    if not path.exists():
        return False
    before = json.loads(path.read_text(encoding="utf-8"))
    if (before["module"], tuple(before["arguments"])) != (step.module, step.arguments):
        raise ConfigError(
            f"step {step.name!r} in {workdir} ran with other arguments; remove {path.parent} to "
            "run it again, or choose another --workdir"
        )
    return True


def mark_finished(step: CascadeStep, workdir: Path, seconds: float) -> None:
    """Remembers that the step has ended well."""
    folder = workdir / step.name
    folder.mkdir(exist_ok=True)
    record = {**dataclasses.asdict(step), "seconds": seconds}
    partial = folder / f"{FINISHED}.partial"
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / FINISHED)


def chosen(steps: Sequence[CascadeStep], names: Sequence[str] | None) -> list[CascadeStep]:
    """All steps, or those named, in their order.

    Raises:
      ConfigError: for an unknown name.
    """
    known = [step.name for step in steps]
    for name in names or ():
        if name not in known:
            raise ConfigError(f"--only: no step {name!r}; there are {', '.join(known)}")
    return [step for step in steps if names is None or step.name in names]


def load_steps(path: str, workdir: Path) -> list[CascadeStep]:
    """What `get_steps` of the config file returns.

    Raises:
      ConfigError: when there is no such file or function, or two steps have one name.
    """
    if not Path(path).exists():
        raise ConfigError(f"--config: {path!r} does not exist")
    spec = importlib.util.spec_from_file_location("cascade_config", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--config: {path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_steps"):
        raise ConfigError(f"--config: {path!r} defines no get_steps(workdir)")
    steps = list(module.get_steps(workdir))
    for step in steps:
        if not isinstance(step, CascadeStep):
            raise ConfigError(f"--config: {path!r}: get_steps gives {step!r}, no CascadeStep")
    names = [step.name for step in steps]
    double = [name for name in names if names.count(name) > 1]
    if double:
        raise ConfigError(f"--config: {path!r} has two steps named {double[0]!r}")
    return steps


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
