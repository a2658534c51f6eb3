"""How much more than one expert do the expert forms cost on this machine?

    python -m benchmarks.expert_dispatch_cpu --json expert_dispatch_cpu.json

One process measures every form under every load, interleaved: round after round, each case once,
so that a busy moment of the machine hits all of them. Figures are medians over the rounds. The
unit is one expert run on all tokens (no grouping, no choice), the least work top-1 experts can do.
Before anything is timed, each form's output and gradients are checked against ``dense``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernels_pallas.expert_mlp import expert_mlp

PASSES = ("forward", "forward+backward")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The geometry that is measured; the defaults are those of the `mini` preset."""

    tokens: int = 2048
    experts: int = 16
    hidden: int = 512
    width: int = 512


def make_loads(sizes: Sizes) -> dict[str, np.ndarray]:
    """Expert classes of the tokens, int32 [tokens], by name of the load."""
    rng = np.random.default_rng(0)
    tokens, experts = sizes.tokens, sizes.experts
    heavy = experts // 4  # a quarter of the experts gets four times the tokens of the others
    skewed = np.where(np.arange(experts) < heavy, 4.0, 1.0)
    loads = {
        "balanced": rng.permutation(np.arange(tokens) % experts),  # the same count for all
        "random": rng.integers(0, experts, tokens),  # balanced on average
        "random+skip": rng.integers(0, experts + 1, tokens),  # the skip class takes its share
        "4:1 skew": rng.choice(experts, tokens, p=skewed / skewed.sum()),
        "one expert": np.full(tokens, min(3, experts - 1)),
        "all skip": np.full(tokens, experts),
    }
    return {name: load.astype(np.int32) for name, load in loads.items()}


def make_arguments(sizes: Sizes) -> tuple[jax.Array, ...]:
    """x, gate, gate_up, down and the output's cotangent, float32."""
    keys = jax.random.split(jax.random.key(0), 5)
    t, e, h, f = sizes.tokens, sizes.experts, sizes.hidden, sizes.width
    return (
        jax.random.normal(keys[0], (t, h)),
        jax.random.uniform(keys[1], (t,)),
        jax.random.normal(keys[2], (e, 2 * f, h)) / h**0.5,
        jax.random.normal(keys[3], (e, h, f)) / f**0.5,
        jax.random.normal(keys[4], (t, h)),
    )


def one_expert(x: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    """The unit of cost: a single expert on every token."""
    g, u = jnp.split(x @ gate_up.T, 2, axis=1)
    return gate[:, None] * ((jax.nn.silu(g) * u) @ down.T)


def with_gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Output and gradients to x, gate, gate_up and down, for a given output cotangent."""

    def run(cotangent: jax.Array, *arguments: jax.Array) -> tuple[jax.Array, ...]:
        out, pullback = jax.vjp(function, *arguments)
        return out, *pullback(cotangent)

    return run


def compile_forms(forms: tuple[str, ...]) -> dict[tuple[str, str], Callable[..., Any]]:
    """A jitted function of (class_index, cotangent, *arguments) for each form and pass."""

    def compile_one(form: str, passes: str) -> Callable[..., Any]:
        def call(class_index: jax.Array, x: jax.Array, *rest: jax.Array) -> jax.Array:
            if form == "dense":
                return expert_mlp(x, class_index, *rest, dispatch="dense")
            return expert_mlp(x, class_index, *rest, dispatch="grouped", implementation=form)  # type: ignore[arg-type]

        def run(class_index: jax.Array, cotangent: jax.Array, *arguments: jax.Array) -> Any:
            bound = functools.partial(call, class_index)
            if passes == "forward":
                return bound(*arguments)
            return with_gradients(bound)(cotangent, *arguments)

        return jax.jit(run)

    return {(form, passes): compile_one(form, passes) for form in forms for passes in PASSES}


def check(actual: Any, expected: Any, what: str) -> None:
    """Raise unless the results agree to float32 rounding, relative to the largest entry."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        error = float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1e-30))
        if not error < 1e-5:
            raise AssertionError(f"{what}: differs from dense by {error:.2e} of the largest entry")


def make_cases(sizes: Sizes, forms: tuple[str, ...]) -> dict[tuple[str, str, str], Callable]:
    """Compiled, checked and warmed-up calls by (form, load, pass)."""
    x, gate, gate_up, down, cotangent = make_arguments(sizes)
    functions = compile_forms(("dense", *forms))
    single = (x, gate, gate_up[0], down[0])
    unit = {
        "forward": functools.partial(jax.jit(one_expert), *single),
        "forward+backward": functools.partial(
            jax.jit(with_gradients(one_expert)), cotangent, *single
        ),
    }
    cases: dict[tuple[str, str, str], Callable] = {}
    for passes in PASSES:
        cases["one expert", "all tokens", passes] = unit[passes]
        jax.block_until_ready(unit[passes]())
    for load, class_index in make_loads(sizes).items():
        arguments = (jnp.asarray(class_index), cotangent, x, gate, gate_up, down)
        for passes in PASSES:
            expected = functions["dense", passes](*arguments)
            for form in forms:
                case = functools.partial(functions[form, passes], *arguments)
                check(case(), expected, f"{form}, {load}, {passes}")
                cases[form, load, passes] = case
    return cases


def measure(cases: dict[tuple[str, str, str], Callable], rounds: int) -> list[dict[str, Any]]:
    """Median wall and processor time of every case, and the ratios to the unit of that pass."""
    wall: dict[tuple[str, str, str], list[float]] = {key: [] for key in cases}
    processor: dict[tuple[str, str, str], list[float]] = {key: [] for key in cases}
    for _ in range(rounds):
        for key, case in cases.items():
            wall_start, processor_start = time.perf_counter(), time.process_time()
            jax.block_until_ready(case())
            wall[key].append(time.perf_counter() - wall_start)
            processor[key].append(time.process_time() - processor_start)
    rows = []
    for key in cases:
        form, load, passes = key
        unit = ("one expert", "all tokens", passes)
        rows.append(
            {
                "form": form,
                "load": load,
                "pass": passes,
                "milliseconds": 1e3 * statistics.median(wall[key]),
                "ratio": statistics.median(wall[key]) / statistics.median(wall[unit]),
                "processor_ratio": statistics.median(processor[key])
                / statistics.median(processor[unit]),
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line a form and load; times, and multiples of one expert on all tokens."""
    print(f"{'':24s}{'forward':>28s}{'forward+backward':>30s}")
    columns = f"{'ms':>10s}{'x one':>9s}{'x CPU':>9s}"
    print(f"{'form':12s}{'load':12s}{columns}  {columns}")
    by_key = {(row["form"], row["load"], row["pass"]): row for row in rows}
    for form, load in dict.fromkeys((row["form"], row["load"]) for row in rows):
        cells = [by_key[form, load, passes] for passes in PASSES]
        text = "  ".join(
            f"{c['milliseconds']:10.1f}{c['ratio']:9.2f}{c['processor_ratio']:9.2f}" for c in cells
        )
        print(f"{form:12s}{load:12s}{text}")
    print("x one: wall time over that of one expert on all tokens; x CPU: the same of CPU time.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--forms", nargs="+", default=["bucketed"], help="also: ragged_dot, dense")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    sizes = Sizes(
        **{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Sizes)}
    )
    rows = measure(make_cases(sizes, tuple(arguments.forms)), arguments.rounds)
    print_table(rows)
    if arguments.json:
        record = {
            "sizes": dataclasses.asdict(sizes),
            "rounds": arguments.rounds,
            "jax": jax.__version__,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "load_average": os.getloadavg()[0],
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
