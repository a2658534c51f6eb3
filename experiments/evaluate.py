"""Evaluation: samples of a model on tasks, graded, with intervals.

    python -m experiments.evaluate --workdir DIR --config.init_from=CHECKPOINT [--ttc METHOD]

Asks our engine (`--config.init_from=`) or any OpenAI-compatible server (`--config.url=` and
`--config.model=`). `--ttc` says how compute is spent on a problem: `none` for plain samples,
`majority` for a vote, or a preset of Markovian RSA. DIR gets `rollouts/` with every answer and its
grade, `traces/` of Markovian RSA, `config.json`, and at the end `results.json`, `results.md` and
`report.html`. The same command again goes on where it stopped, with the same results as if it had
not stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.command_line import run_reporting_errors
from experiments.evaluation_config import evaluation_help, resolve
from zaya_jax.config import ConfigError
from zaya_jax.data.config import DataError
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.methods import make_method
from zaya_jax.evaluation.models import LocalModel, Model, OpenAIModel
from zaya_jax.evaluation.run import Job, run_job
from zaya_jax.evaluation.settings import METHODS, PLAIN, EvaluationConfig
from zaya_jax.evaluation.summary import TaskSummary, summarise
from zaya_jax.evaluation.table import table_text, write_results
from zaya_jax.evaluation.tasks import make_task
from zaya_jax.inference.command import load_engine
from zaya_jax.inference.request import RequestError
from zaya_jax.inference.service import EngineService, ServiceError
from zaya_jax.rl.errors import RLError
from zaya_jax.training.config_file import split_overrides
from zaya_jax.training.resolved import to_plain
from zaya_jax.training.workdir import claimed, folder_option

DEFAULT_CONFIG = str(Path(__file__).parent / "configs" / "evaluation" / "demo.py")


class Arguments(NamedTuple):
    """A parsed command line."""

    config: EvaluationConfig
    workdir: Path
    ttc: str


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = parse(argv)
    try:
        with claimed(arguments.workdir):
            return evaluate(*arguments)
    except (RLError, RequestError, ServiceError) as error:
        raise ConfigError(str(error)) from error
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def parse(argv: Sequence[str]) -> Arguments:
    """Reads the command line; prints help or one line of error and exits where asked or wrong."""
    parser = _Parser(
        prog="python -m experiments.evaluate",
        description=__doc__,
        epilog="example:\n"
        "  python -m experiments.evaluate --workdir /tmp/evaluation --ttc none \\\n"
        "      --config experiments/configs/evaluation/demo.py:tiny "
        "--config.init_from=runs/demo\n\n"
        f"config fields and their defaults (a config file may differ):\n{evaluation_help()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--workdir", required=True, type=folder_option, help="folder of the evaluation"
    )
    parser.add_argument(
        "--config",
        default=DEFAULT_CONFIG,
        metavar="FILE.py[:NAME]",
        help="config file; default: evaluation/demo.py",
    )
    parser.add_argument("--ttc", default=PLAIN, choices=METHODS, help="(none)")
    try:
        rest, overrides = split_overrides(argv)
        arguments = parser.parse_args(rest)
        config = resolve(arguments.config, overrides)
    except ConfigError as error:
        parser.error(str(error))
    return Arguments(config, arguments.workdir, arguments.ttc)


def evaluate(config: EvaluationConfig, workdir: Path, ttc: str) -> int:
    """Runs all tasks, prints the table and writes the results."""
    plain = {**to_plain(config), "ttc": ttc}
    plain["tasks"] = {name: to_plain(task) for name, task in config.tasks.items()}
    with contextlib.ExitStack() as stack:
        tasks = {}
        for name, own in config.tasks.items():
            tasks[name] = make_task(own, Path(config.data), unsafe=config.unsafe)
            stack.callback(tasks[name].close)
        model = stack.enter_context(_model(config))
        (workdir / "config.json").write_text(json.dumps(plain, indent=2) + "\n")
        jobs = [
            Job(name, tasks[name], own, make_method(ttc, model, config, own.sampling), ttc)
            for name, own in config.tasks.items()
        ]
        summaries = asyncio.run(_run(jobs, config, model, workdir))
    print(table_text(summaries), end="")
    written = write_results(workdir, summaries, plain)
    print(f"wrote {', '.join(str(path) for path in written)}")
    return 0


async def _run(
    jobs: Sequence[Job], config: EvaluationConfig, model: Model, workdir: Path
) -> list[TaskSummary]:
    """One task after the other."""
    summaries = []
    with _progress() as progress:
        for job in jobs:
            total = len(job.items) * job.config.samples
            bar = progress.add_task(job.name, total=total, tokens=0)
            tokens = 0

            def advance(record: Any, bar: Any = bar) -> None:
                nonlocal tokens
                tokens += record.new_tokens
                progress.update(bar, advance=1, tokens=tokens)

            records = await run_job(job, config, model.identity, workdir, advance)
            progress.update(bar, completed=total)
            summaries.append(
                summarise(
                    job.name,
                    str(job.config.kind),
                    job.method_name,
                    records,
                    confidence=config.confidence,
                    resamples=config.resamples,
                    seed=config.seed,
                )
            )
    return summaries


def _progress() -> Progress:
    """A bar for each task, on standard error: the table is what goes to standard output."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]:,} tokens"),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True, highlight=False),
    )


@contextlib.contextmanager
def _model(config: EvaluationConfig) -> Iterator[Model]:
    """The model to ask, while the context lasts."""
    if config.url:
        key = "none"
        if config.api_key_file:
            key = Path(config.api_key_file).read_text(encoding="utf-8").strip()
        if not key:
            raise EvaluationError(f"api_key_file={config.api_key_file!r} is empty")
        yield OpenAIModel(config.url, config.model, api_key=key, timeout=config.timeout)
        return
    try:
        engine, tokenizer = load_engine(config.init_from, config.tokenizer or None, config.engine)
    except DataError as error:
        raise EvaluationError(str(error).replace("--tokenizer", "--config.tokenizer")) from error
    with EngineService(engine) as service:
        yield LocalModel(str(Path(config.init_from).resolve()), service, tokenizer)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the usage, which lists far too much here."""
        print(f"error: {message} (--help shows an example)", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
