"""What the command lines of this room share."""

from __future__ import annotations

import argparse
import io
import logging
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.config import ConfigError


class Parser(argparse.ArgumentParser):
    """A parser that keeps the lines of its description; its errors are one line and status 2."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Prints the line and exits."""
        print(f"error: {message} (--help shows the usage)", file=sys.stderr)
        sys.exit(2)


def run_command(
    run: Callable[[], int],
    user_errors: tuple[type[Exception], ...] = (CheckpointError, ConfigError, OSError),
) -> NoReturn:
    """Exits with the status of `run`; an error the user can mend is one line and status 1."""
    # Names of files may hold what the terminal cannot show.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs what it also raises
    try:
        status = run()
    except user_errors as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)
