"""A comparison of variants: a grid of arms and seeds, matched, resumed, one table, one page.

    python -m experiments.ablate --config experiments/configs/ablations.py:router --workdir DIR

`--dry-run` prints the arms and how they were matched.

The config file has `get_config`, the run that every arm changes, and `get_grid`, which names the
arms (`experiments.ablation.grid.Grid`). DIR/NAME gets a folder for every run, `table.md`,
`table.json`, `curves.html` and an SVG of each plot. The same command again makes what is missing:
a finished run is not made again, an interrupted one goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from experiments.ablation.grid import Grid
from experiments.ablation.matching import MatchedArm, matched_arms, size_table
from experiments.ablation.page import curves, page, svg_file
from experiments.ablation.results import read_results, write_whole
from experiments.ablation.runs import PlannedRun, best_of, first_runs, later_runs, make
from experiments.ablation.table import as_json, result_table, summarise
from experiments.command_line import run_reporting_errors
from zaya_jax.config import ConfigError
from zaya_jax.training.config_file import (
    apply_overrides,
    call_config_file,
    load_config,
    split_overrides,
    to_run_config,
)
from zaya_jax.training.preemption import StopSignal
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.workdir import claimed, folder_option

CONFIG = str(Path(__file__).parent / "configs" / "ablations.py")


class Arguments(NamedTuple):
    """A parsed command line."""

    name: str
    grid: Grid
    base: RunConfig
    workdir: Path  # of the grid
    dry_run: bool


def parse(argv: Sequence[str]) -> Arguments:
    """Reads the command line.

    Raises:
      ConfigError: for an unknown grid, arm or field.
    """
    parser = argparse.ArgumentParser(
        prog="python -m experiments.ablate",
        description=__doc__,
        epilog="--config.SECTION.FIELD=VALUE changes the run that every arm starts from.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", required=True, type=folder_option, help="folder of all grids")
    parser.add_argument("--config", default=f"{CONFIG}:router", metavar="FILE.py:GRID")
    parser.add_argument("--arms", default="", metavar="A,B", help="some arms; default: all")
    parser.add_argument("--seeds", default="", metavar="0,1", help="instead of the grid's")
    parser.add_argument(
        "--level", type=float, metavar="X", help="load entropy that counts as balanced; 0.99"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the matched grid only")
    rest, overrides = split_overrides(argv)
    options = parser.parse_args(rest)
    base = to_run_config(apply_overrides(load_config(options.config), overrides))
    file, _, name = options.config.partition(":")
    if not name:
        raise ConfigError(f"--config={file!r} names no grid: --config {file}:GRID")
    grid = load_grid(file, name)
    if options.arms:
        grid = grid.select([word.strip() for word in options.arms.split(",")])
    if options.seeds:
        try:
            seeds = tuple(int(word) for word in options.seeds.split(","))
        except ValueError:
            raise ConfigError(f"--seeds={options.seeds!r} is no list of numbers: 0,1") from None
        grid = dataclasses.replace(grid, seeds=seeds)
    if options.level is not None:
        grid = dataclasses.replace(grid, balance=options.level)
    return Arguments(name, grid, base, options.workdir / name, options.dry_run)


def load_grid(file: str, name: str) -> Grid:
    """`get_grid(name)` of a config file.

    Raises:
      ConfigError: when there is none, or it fails, or returns something else.
    """
    grid = call_config_file(f"{file}:{name}", "get_grid", ": is it one of comparisons?")
    if not isinstance(grid, Grid):
        raise ConfigError(f"config file {file!r}: get_grid returned {type(grid).__name__}")
    return grid


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = parse(argv)
    grid = arguments.grid
    arms = matched_arms(grid, arguments.base)
    sizes = size_table(arms, grid.baseline)
    print(f"{arguments.name}: {grid.question}\nmatched by {grid.match}\n" + "\n".join(sizes))
    rates = ", ".join(f"{rate:g}" for rate in grid.learning_rates) or "the base's"
    print(f"{len(arms)} arms, seeds {list(grid.seeds)}, {arguments.base.train.steps} steps")
    print(f"peak learning rates: {rates}", flush=True)
    if arguments.dry_run:
        return 0
    with claimed(arguments.workdir), StopSignal() as stop:
        keep_compiled(arguments.workdir / "compiled")
        return compare(arguments, arms, stop)


def compare(arguments: Arguments, arms: Sequence[MatchedArm], stop: StopSignal) -> int:
    """Makes all runs, and the table and page after each; 128 + signal when one stopped it."""
    grid, workdir = arguments.grid, arguments.workdir
    firsts = first_runs(grid, arms, workdir)
    for position, run in enumerate(firsts, start=1):
        if status := _make(run, stop, f"{position}/{len(firsts)}, first seed"):
            return status
    chosen = [best_of(firsts, arm.name) for arm in arms]
    report(arguments, arms, firsts, chosen)
    laters = list(later_runs(grid, arms, firsts, workdir))
    for position, run in enumerate(laters, start=1):
        if status := _make(run, stop, f"{position}/{len(laters)}, later seeds"):
            return status
        chosen.append(run)
        report(arguments, arms, firsts, chosen)
    print((workdir / "table.md").read_text())
    print(f"page: {workdir / 'curves.html'}")
    return 0


def _make(run: PlannedRun, stop: StopSignal, position: str) -> int:
    state = "finished already" if run.is_finished else "training"
    print(f"==> [{position}] {run.arm}, seed {run.seed}, rate {run.learning_rate:g}: {state}")
    sys.stdout.flush()
    return make(run, stop)


def report(
    arguments: Arguments,
    arms: Sequence[MatchedArm],
    tried: Sequence[PlannedRun],
    chosen: Sequence[PlannedRun],
) -> None:
    """Writes the table and the page from what is finished."""
    grid, workdir = arguments.grid, arguments.workdir
    order = {arm.name: [run for run in chosen if run.arm == arm.name] for arm in arms}
    results = read_results([run for runs in order.values() for run in runs])
    rows = summarise(grid, results)
    tables = {
        "Sizes": size_table(arms, grid.baseline),
        "Results": result_table(grid, rows),
    }
    if grid.learning_rates:
        tables["Learning rates tried"] = rate_table(tried)
    text = f"# {arguments.name}\n\n{grid.question} Mean [least, most] over seeds.\n"
    text += "".join(f"\n## {name}\n\n" + "\n".join(t) + "\n" for name, t in tables.items())
    write_whole(workdir / "table.md", text)
    sizes = {arm.name: dataclasses.asdict(arm.sizes) for arm in arms}
    write_whole(workdir / "table.json", as_json(grid, sizes, rows))
    write_whole(workdir / "curves.html", page(arguments.name, grid, results, tables))
    for plot in curves(grid, results):
        write_whole(workdir / f"{plot.title.lower().replace(' ', '_')}.svg", svg_file(plot))


def rate_table(tried: Sequence[PlannedRun]) -> list[str]:
    """Markdown: the last validation loss of the first seed at every peak."""
    rates = sorted({run.learning_rate for run in tried})
    lines = [f"| arm | {' | '.join(f'{rate:g}' for rate in rates)} |"]
    lines.append("| --- " * (len(rates) + 1) + "|")
    for arm in dict.fromkeys(run.arm for run in tried):
        losses = {run.learning_rate: run.final_loss() for run in tried if run.arm == arm}
        cells = [f"{losses[rate]:.4f}" if rate in losses else "" for rate in rates]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return lines


def keep_compiled(folder: Path) -> None:
    """Seeds share their programs; a cache that the user has chosen stays in use."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
