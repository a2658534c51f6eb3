"""Writes examples that teach aggregation: the cold start of Markovian RSA.

    python -m zaya_jax.data.aggregation --source records.jsonl --output examples.jsonl \
        --tokenizer zaya_demo_8k --subset 4 --tail 4096

Records, draws and the same as a source of a run: `zaya_jax/data/aggregation_examples.py`. Instead
of a file of records, `--source chain_sum?size=2000` makes problems with right and wrong solutions.
With `--prompts-only` the rows end with the prompt: a teacher that answers them gives rollouts
written under that very prompt.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from zaya_jax.config import ConfigError
from zaya_jax.data.aggregation_examples import AggregationSettings, aggregation_examples
from zaya_jax.data.bad_rows import BadRows
from zaya_jax.data.config import DataError
from zaya_jax.data.reasoning_problems import integer_options
from zaya_jax.data.row_files import BadRow
from zaya_jax.data.tokenizer import load_tokenizer


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    names = [field.name for field in dataclasses.fields(AggregationSettings)]
    settings = AggregationSettings(**{name: getattr(arguments, name) for name in names})
    print("\n".join(write_examples(arguments, settings)))
    return 0


def write_examples(arguments: argparse.Namespace, settings: AggregationSettings) -> list[str]:
    """Writes the examples, whole or not at all; returns a report.

    Raises:
      DataError: when there is no such source, too much of it is unusable, or nothing comes of it.
    """
    name, _, query = arguments.source.partition("?")
    of_task = {"seed": settings.seed, **integer_options(arguments.source, query)}
    tokenizer = load_tokenizer(arguments.tokenizer)
    target = not arguments.prompts_only
    bad, count = BadRows(arguments.source, arguments.max_bad_rows), 0
    temporary = arguments.output.with_name(arguments.output.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for row in aggregation_examples(name, of_task, settings, tokenizer, target=target):
                if isinstance(row, BadRow):
                    bad.note(row.place, row.reason)
                    continue
                file.write(json.dumps(row.fields, ensure_ascii=False) + "\n")
                count += 1
        if not count:
            raise DataError(f"source {arguments.source!r} gives no example: {bad.summary()}")
        temporary.rename(arguments.output)
    finally:
        temporary.unlink(missing_ok=True)
    return [line for line in (bad.summary(), f"{count:,} examples") if line]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m zaya_jax.data.aggregation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", required=True, help="file or folder of records, or TASK?size=…")
    parser.add_argument("--output", required=True, type=Path, help="file of chat rows, JSON lines")
    parser.add_argument("--tokenizer", required=True, help="name or path of a tokenizer.json")
    parser.add_argument("--prompts-only", action="store_true", help="for a teacher to answer")
    parser.add_argument("--max-bad-rows", type=int, default=100, help="before it stops")
    for field in dataclasses.fields(AggregationSettings):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=int, default=field.default, help=f"default {field.default}")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ConfigError, DataError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
