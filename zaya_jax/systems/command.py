"""What the commands of this room share: reading a run's config, and tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from zaya_jax.checkpoint.command import Parser
from zaya_jax.config import ConfigError
from zaya_jax.training.config_file import (
    apply_overrides,
    load_config,
    split_overrides,
    to_run_config,
)
from zaya_jax.training.settings import RunConfig

_PLAIN_WIDTH = 140  # columns where stdout is no terminal


def make_parser(module: str, summary: str, example: str) -> Parser:
    """A parser whose --help shows an example."""
    return Parser(
        prog=f"python -m zaya_jax.systems.{module}",
        description=summary,
        epilog=f"example:\n  python -m zaya_jax.systems.{module} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse_with_config(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, RunConfig]:
    """Adds `--config FILE.py[:NAME]` and `--config.a.b=VALUE` to a parser and reads both.

    Errors print one line and exit with status 2.
    """
    parser.add_argument("--config", required=True, metavar="FILE.py[:NAME]", help="config of a run")
    try:
        rest, overrides = split_overrides(argv)
        arguments = parser.parse_args(rest)
        config = to_run_config(apply_overrides(load_config(arguments.config), overrides))
    except ConfigError as error:
        parser.error(str(error))
    return arguments, config


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1
) -> None:
    """Rows under a title; the first `left` columns flush left, the others flush right."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    print(title)
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    Console(highlight=False, markup=False, width=width).print(table)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.rename(path)


def readable_bytes(size: float) -> str:
    """In powers of 1,024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
