"""The command line every stage shares, and how its errors look."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from kernels_pallas.backend import KernelError
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.config import ConfigError
from zaya_jax.data.config import DataError
from zaya_jax.parallel.hosts import Hosts
from zaya_jax.training.config_file import (
    apply_overrides,
    field_help,
    load_config,
    split_overrides,
    to_run_config,
)
from zaya_jax.training.metrics_file import MetricsError
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.validation import TrainingError
from zaya_jax.training.workdir import folder_option

DEMO = str(Path(__file__).parent / "configs" / "demo.py")

# What a user can mend. Any other exception is a fault of the program and shows its traceback.
USER_ERRORS = (
    ConfigError,
    DataError,
    CheckpointError,
    MetricsError,
    TrainingError,
    KernelError,
    OSError,
)


class Arguments(NamedTuple):
    """A parsed command line."""

    config: RunConfig
    workdir: Path
    dry_run: bool
    hosts: Hosts


def parse_arguments(
    argv: Sequence[str], *, program: str, summary: str, default_config: str = DEMO
) -> Arguments:
    """Reads the command line; prints help or one line of error and exits where asked or wrong."""
    default_name = Path(default_config).name
    parser = _Parser(
        prog=f"python -m {program}",
        description=summary,
        epilog="example:\n"
        f"  python -m {program} --workdir /tmp/zaya-demo --config.train.steps=200\n\n"
        f"config fields and their defaults (a config file may differ):\n{field_help()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", required=True, type=folder_option, help="folder of the run")
    parser.add_argument(
        "--config",
        default=default_config,
        metavar="FILE.py[:NAME]",
        help=f"config file; default: {default_name}",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print sizes and lower the step; train nothing"
    )
    parser.add_argument("--coordinator", default="", metavar="HOST:PORT", help="of process 0")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="of the whole run")
    parser.add_argument("--process-id", type=int, default=-1, metavar="N", help="of this process")
    try:
        rest, overrides = split_overrides(argv)
        arguments = parser.parse_args(rest)
        config = to_run_config(apply_overrides(load_config(arguments.config), overrides))
    except ConfigError as error:
        parser.error(str(error))
    hosts = Hosts(arguments.coordinator, arguments.processes, arguments.process_id)
    return Arguments(config, arguments.workdir, arguments.dry_run, hosts)


def run_reporting_errors(run: Callable[[], int]) -> NoReturn:
    """Exits with the status of `run`; an error the user can mend is one line and status 1."""
    # Every failed write of Orbax is logged with its stack; the failure reaches us as an exception.
    for logger in ("absl", "asyncio"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    sys.unraisablehook = _without_late_writers
    try:
        status = run()
    except USER_ERRORS as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        status = 1
    sys.exit(status)


def _without_late_writers(caught: sys.UnraisableHookArgs) -> None:
    """Prints what a background thread failed with, unless a write reports to nobody.

    After a failed save TensorStore's own threads still try to wake Orbax's event loop, and each
    prints that it is closed into whatever else is being written to the terminal.
    """
    if str(caught.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(caught)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the usage, which lists far too much here."""
        print(f"error: {message} (--help shows an example)", file=sys.stderr)
        sys.exit(2)
