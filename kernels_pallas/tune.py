"""Choose tile sizes for this machine's GPU, or for one that is not here, and write its table.

    python -m kernels_pallas.tune --target mi300x --only cca            # no GPU: by resources
    python -m kernels_pallas.tune --target h200 --time --only experts   # on that GPU: by time
    python -m kernels_pallas.tune --target mi300x --table mi325x --device-kind "AMD Instinct MI325X"

Without ``--time`` candidates are compiled offline and the largest tiles that keep every limit win:
most products a load, with at least two waves on a SIMD. With ``--time`` those that keep the limits
are run on the GPU with fresh random data (experts with skewed routing) and the fastest wins.
Nothing is tuned while a program is traced; programs only read ``tuned/<table>.json``.

Another device of a target's architecture gets a table of its own, which begins as a copy of the
target's. Other architectures have no table and no limits here; there programs take the XLA forms.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernels_pallas import device_time, machine_code, offline_compile
from kernels_pallas.backend import (
    TABLES,
    KernelError,
    Target,
    Tiles,
    compile_for,
    device_kinds,
    forget_tables,
    table_names,
    tiles,
)
from kernels_pallas.machine_code import MACHINES
from kernels_pallas.real_shapes import EXPERTS, HEAD_DIM, VOCABULARY, Case, cases

ROUNDS = 9
_NOT_TILES = ("splits", "group", "chunk")  # they share out work; registers do not depend on them


def candidates(plan: Tiles) -> Iterator[Tiles]:
    """The plan, and the plans one step away: a tile halved or doubled, other warps."""
    entry = {**dict(plan.sizes), "num_warps": plan.num_warps, "num_stages": plan.num_stages}
    yield plan
    for name, value in plan.sizes:
        if name not in _NOT_TILES:
            yield from (Tiles.parse({**entry, name: v}) for v in (value // 2, 2 * value) if v >= 16)
    yield from (
        Tiles.parse({**entry, "num_warps": w})
        for w in (plan.num_warps // 2, 2 * plan.num_warps)
        if 4 <= w <= 8
    )


def keeps_limits(case: Case, target: Target, kernel: str) -> bool:
    """Whether every variant of a kernel keeps its limits with the target's tiles."""
    found = [
        broken
        for figures, broken in offline_compile.compile_case(case, target, only=kernel)
        if figures.kernel == kernel
    ]
    return bool(found) and not any(found)


def area(plan: Tiles) -> int:
    """How much one program makes at once."""
    return math.prod(value for name, value in plan.sizes if name not in _NOT_TILES)


def random_arguments(case: Case) -> tuple[Any, ...]:
    """Normal floats, and integers as the operation meets them in use: see `_random_integers`."""
    rng = np.random.default_rng(time.time_ns())

    def fill(a: Any) -> jax.Array:
        if jnp.issubdtype(a.dtype, jnp.floating):
            return jnp.asarray(rng.standard_normal(a.shape, np.float32), a.dtype)
        return jnp.asarray(_random_integers(case, a.shape, rng), a.dtype)

    return jax.tree.map(fill, case.arguments)


def _random_integers(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """The integers that an operation's work depends on.

    Decoding: lengths from three quarters of the cache up to all of it, in order, as rows that
    began one after another have them. Packed attention: segments of hundreds of tokens. Experts: a
    skewed router, a quarter of whose experts get four times the others' tokens. Cross entropy:
    ids from the whole vocabulary.
    """
    if case.operation == "attention_decode":
        keys = case.arguments[1].shape[1]
        return np.sort(rng.integers(3 * keys // 4, keys + 1, shape))
    if case.operation == "attention_packed":
        rows, tokens = shape
        cuts = rng.integers(0, tokens, (rows, max(1, tokens // 512)))
        return (np.arange(tokens)[None, :, None] >= cuts[:, None, :]).sum(axis=2)
    if case.operation == "experts":
        classes = EXPERTS + 1  # the last one skips
        share = np.where(np.arange(classes) < EXPERTS // 4, 4.0, 1.0)
        return rng.choice(classes, shape, p=share / share.sum())
    if case.operation == "cross_entropy":
        return rng.integers(0, VOCABULARY, shape)
    raise KernelError(f"{case.operation}: no way to draw its integer arguments")


def seconds(case: Case, target: Target) -> float:
    """Median device time of the whole operation, forward and backward, on this machine's GPU."""
    function = case.traced()
    with compile_for(target):
        # A new function for each candidate: jit remembers what it traced with other tiles.
        compiled = jax.jit(functools.partial(function)).lower(*case.arguments).compile()
    jax.block_until_ready(compiled(*random_arguments(case)))
    times = []
    for _ in range(ROUNDS):
        arguments = jax.block_until_ready(random_arguments(case))
        times.append(device_time.seconds(functools.partial(compiled, *arguments)))
    return statistics.median(times)


def best(case: Case, machine: str, table: str, kernel: str, *, timed: bool) -> Tiles:
    """The best candidate for one kernel, by the limits of a machine, around the table's entry.

    Raises:
      KernelError: when none keeps the limits.
    """
    plan = tiles(Target(table), kernel, HEAD_DIM)
    fitting = []
    for candidate in candidates(plan):
        target = Target(machine, overrides=((kernel, candidate),))
        if keeps_limits(case, target, kernel):
            fitting.append((seconds(case, target) if timed else -area(candidate), candidate))
    if not fitting:
        raise KernelError(f"{kernel} on {machine}: no candidate keeps the limits")
    return min(fitting, key=lambda pair: pair[0])[1]


def write(name: str, kernel: str, plan: Tiles, made_by: str) -> None:
    """Put one kernel's tiles into the table, under the entry that the lookup reads.

    ``made_by`` is noted for this entry alone, under ``"retuned"``.
    """
    path = TABLES / f"{name}.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    entry = {**dict(plan.sizes), "num_warps": plan.num_warps, "num_stages": plan.num_stages}
    key = kernel if kernel in table["tiles"] else f"{kernel}:{HEAD_DIM}"
    table["tiles"][key] = entry
    # What the table says of its other entries stays true; this entry gets a line of its own.
    table["retuned"] = {**table.get("retuned", {}), key: made_by}
    _save(path, table)


def _save(path: Path, table: dict[str, Any]) -> None:
    rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in table["tiles"].items())
    head = "".join(f" {json.dumps(k)}: {json.dumps(table[k])},\n" for k in table if k != "tiles")
    unfinished = path.with_suffix(".json.tmp")
    unfinished.write_text(f'{{\n{head} "tiles": {{\n{rows}\n }}\n}}\n', encoding="utf-8")
    unfinished.replace(path)
    forget_tables()


def begin_table(name: str, device_kind: str, target: str) -> None:
    """Write a new table for a kind of device, with the tiles of a target of its architecture.

    Raises:
      KernelError: for a name that is no file name, or a table or device kind that exists.
    """
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise KernelError(f"--table {name!r}: must be of small letters, digits and _")
    for known in table_names():
        if known == name or device_kind in device_kinds(known):
            kinds = ", ".join(device_kinds(known)) or "no device"
            raise KernelError(f"the table {known!r} exists, for {kinds}: tune it with --table")
    table = json.loads((TABLES / f"{target}.json").read_text(encoding="utf-8"))
    made_by = f"a copy of {target}, of the same architecture"
    kept = {"device_kinds": [device_kind], "made_by": made_by, "tiles": table["tiles"]}
    _save(TABLES / f"{name}.json", kept)
    print(f"{name}: {made_by}, for {device_kind}", flush=True)


def _check_device(table: str, device_kind: str | None) -> None:
    """Refuse to time on another device than the table's."""
    if jax.default_backend() not in ("gpu", "cuda", "rocm"):
        raise KernelError(
            f"--time needs the GPU, the default backend is {jax.default_backend()!r}; "
            "without --time tiles are chosen by resources"
        )
    here = jax.devices()[0].device_kind
    wanted = [device_kind] if device_kind else device_kinds(table)
    if here not in wanted:
        raise KernelError(
            f"--time: this machine's GPU is {here!r}, the table {table!r} is for "
            f"{', '.join(wanted) or 'no device'}; without --time tiles are chosen by resources"
        )


def run(options: argparse.Namespace) -> int:
    """Tune what was asked for and print it."""
    machine_code.triton_version()
    table = options.table or options.target
    if options.target not in table_names():
        raise KernelError(f"no table {options.target!r} to start from in {TABLES}")
    if table not in table_names() and not options.device_kind:
        raise KernelError(
            f"no table {table!r} (tables: {', '.join(table_names())}); "
            "--device-kind begins it, with the device_kind that jax.devices() shows"
        )
    if options.time:
        _check_device(table, options.device_kind)
    if options.device_kind and options.dry_run:
        raise KernelError("--dry-run writes nothing, --device-kind begins a table; leave one out")
    if options.device_kind:
        begin_table(table, options.device_kind, options.target)
    chosen = [case for case in cases() if options.only in (None, case.operation)]
    how = "timed on the device" if options.time else "chosen by resources, not timed on a device"
    for case in chosen:
        if not case.products:
            print(f"{case.operation}: nothing is chosen: no product, its tiles stay as they are")
        for kernel in case.products:
            plan = best(case, options.target, table, kernel, timed=options.time)
            print(f"{kernel}: {dict(plan.sizes)}, {plan.num_warps} warps", flush=True)
            if not options.dry_run:
                write(table, kernel, plan, f"python -m kernels_pallas.tune: {how}")
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = offline_compile.LineParser(prog="python -m kernels_pallas.tune", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--target", choices=tuple(MACHINES), required=True, help="limits")
    parser.add_argument("--table", metavar="NAME", help="to write; default: the target's")
    parser.add_argument("--device-kind", metavar="KIND", help="begin that table, for this device")
    operations = tuple(case.operation for case in cases())
    parser.add_argument("--only", choices=operations, help="one operation only")
    parser.add_argument("--time", action="store_true", help="run the candidates on this GPU")
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    offline_compile.exit_with_status(lambda: run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
