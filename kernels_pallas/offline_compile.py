"""Compile every kernel for MI300X, MI350 or H200 with no GPU present, and hold them to limits.

    python -m kernels_pallas.offline_compile --target mi300x
    python -m kernels_pallas.offline_compile --target mi300x --markdown
    python -m kernels_pallas.offline_compile --target h200 --float32

Forward and backward at the sizes of ZAYA1-8B, in bfloat16. Exit status 1 when a kernel breaks a
limit: a spilled register, scratch memory, more shared memory than a workgroup has, a product
without matrix instructions, or too many registers for two waves on a SIMD.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import jax

from kernels_pallas import machine_code
from kernels_pallas.backend import (
    KernelError,
    Target,
    Tiles,
    compile_for,
    kernel_names,
    power_of_two,
    table_names,
    tiles,
)
from kernels_pallas.machine_code import MACHINES, Figures
from kernels_pallas.real_shapes import HEAD_DIM, Case, cases


def compile_case(
    case: Case, target: Target, only: str | None = None
) -> Iterator[tuple[Figures, list[str]]]:
    """Figures of each different kernel of an operation (or ``only`` one), and broken limits."""
    function = case.traced()

    def fresh(*arguments: object) -> object:  # jit remembers what it traced for another target
        return function(*arguments)

    with compile_for(target):
        kernels = list(machine_code.triton_kernels(fresh, *case.arguments, target=target.name))
    if not kernels:
        raise KernelError(f"{case.operation}: no Pallas kernel was called")
    for name, text, warps, stages in dict.fromkeys(kernels):
        if only not in (None, name):
            continue
        figures = machine_code.figures(name, text, warps, stages, target.name)
        yield figures, broken_limits(figures, product=name in case.products)


def broken_limits(figures: Figures, *, product: bool) -> list[str]:
    """What a kernel exceeds, in words; empty when it keeps all limits."""
    machine = MACHINES[figures.target]
    broken = []
    if figures.spills:
        broken.append(f"{figures.spills} spilled (limit 0)")
    if figures.scratch_bytes:
        broken.append(f"{figures.scratch_bytes} B scratch (limit 0)")
    if figures.shared_bytes > machine.shared_bytes:
        broken.append(f"{figures.shared_bytes} B shared (limit {machine.shared_bytes})")
    if figures.registers > machine.most_registers:
        broken.append(f"{figures.registers} registers (limit {machine.most_registers})")
    if product and not figures.matrix_instructions:
        broken.append("no matrix instruction")
    if figures.waves < 2:
        broken.append(f"{figures.waves} waves (at least 2)")
    return broken


def parse_override(text: str, target: str) -> tuple[str, Tiles]:
    """``kernel.size=value`` as that kernel's tiles with one of them changed."""
    name, equals, value = text.partition("=")
    kernel, dot, size = name.rpartition(".")
    if not (equals and dot and value.isdigit()):
        raise KernelError(f"--tile {text!r}: must be KERNEL.SIZE=NUMBER")
    known = kernel_names(target)
    if kernel not in known:
        raise KernelError(f"--tile {text!r}: the kernels are {', '.join(known)}")
    plan = tiles(Target(target), kernel, HEAD_DIM)
    entry = {**dict(plan.sizes), "num_warps": plan.num_warps, "num_stages": plan.num_stages}
    if size not in entry:
        raise KernelError(f"--tile {text!r}: {kernel} has the sizes {', '.join(entry)}")
    number = int(value)
    if number < 1 or (size != "num_stages" and number != power_of_two(number)):
        raise KernelError(f"--tile {text!r}: must be a power of two, at least 1")
    return kernel, Tiles.parse({**entry, size: number})


HEADINGS = ("kernel", "warps", "stages", "registers", "spills", "scratch B", "shared B", "matrix")


def _row(figures: Figures) -> list[str]:
    values = (
        figures.kernel,
        figures.num_warps,
        figures.num_stages,
        figures.registers,
        figures.spills,
        figures.scratch_bytes,
        figures.shared_bytes,
        figures.matrix_instructions,
        figures.waves,
    )
    return [str(value) for value in values]


def _line(cells: Sequence[str], markdown: bool) -> str:
    if markdown:
        return f"| {' | '.join(cells)} |"
    return f"{cells[0]:34s}" + "".join(f"{cell:>10s}" for cell in cells[1:])


def _parser() -> argparse.ArgumentParser:
    parser = LineParser(prog="python -m kernels_pallas.offline_compile", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--target", choices=tuple(MACHINES), default="mi300x")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument(
        "--markdown", action="store_true", help="the table as docs/kernels.md has it"
    )
    operations = tuple(case.operation for case in cases())
    parser.add_argument("--only", choices=operations, help="one operation only")
    parser.add_argument(
        "--float32",
        action="store_true",
        help="float32 arrays in place of bfloat16; tiles are not chosen for them",
    )
    parser.add_argument(
        "--tile",
        action="append",
        default=[],
        metavar="KERNEL.SIZE=NUMBER",
        help="a tile size other than the table's, say attention_forward.query=256",
    )
    return parser


class LineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """One line instead of the usage."""
        print(f"error: {message} (--help shows the options)", file=sys.stderr)
        sys.exit(2)


def run(options: argparse.Namespace) -> int:
    """Compile, print, and say whether all limits hold (0) or not (1)."""
    version = machine_code.triton_version()
    if options.target not in table_names():
        raise KernelError(f"no tuned table {options.target!r}; tables: {', '.join(table_names())}")
    overrides = tuple(parse_override(text, options.target) for text in options.tile)
    target = Target(options.target, overrides=overrides)
    records, failures = [], []
    if not options.json:
        print(_line((*HEADINGS, "waves"), options.markdown))
        if options.markdown:
            print("|---|" + "---:|" * len(HEADINGS))
    for case in cases():
        if options.only not in (None, case.operation):
            continue
        for figures, broken in compile_case(case.in_float32() if options.float32 else case, target):
            records.append({**dataclasses.asdict(figures), "broken_limits": broken})
            failures += [f"{figures.kernel} on {target.name}: {what}" for what in broken]
            if not options.json:
                print(_line(_row(figures), options.markdown), flush=True)
    if options.json:
        report = {"jax": jax.__version__, "triton": version, "kernels": records}
        print(json.dumps(report, indent=1))
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def exit_with_status(command: Callable[[], int]) -> NoReturn:
    """Exits with the command's status: 1, with one line, for errors that the user can mend."""
    try:
        status = command()
        sys.stdout.flush()
    except KernelError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    except BrokenPipeError:  # who reads has seen enough, but not everything was checked
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    exit_with_status(lambda: run(_parser().parse_args(arguments)))


if __name__ == "__main__":
    main()
