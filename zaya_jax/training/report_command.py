"""The command line of a report: the folder of a run in, one page out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def report_command(
    module: str,
    description: str | None,
    write_report: Callable[[Path], Path],
    arguments: Sequence[str] | None = None,
) -> None:
    """Writes the report of the run that the command line names.

    Args:
      module: of the command, as `python -m` takes it.
      description: for `--help`.
      write_report: makes the page of a folder and says where it is.
      arguments: instead of the process's own.

    Raises:
      SystemExit: with one line, for a folder that cannot be reported on.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workdir", type=Path, help="folder of the run, with metrics.jsonl")
    options = parser.parse_args(arguments)
    try:
        print(f"wrote {write_report(options.workdir)}")
    except (ValueError, OSError) as error:
        sys.exit(f"report: {error}")
