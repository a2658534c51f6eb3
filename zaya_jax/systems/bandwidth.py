"""Times copies and triads in a device's memory over sizes, and checks every result.

    python -m zaya_jax.systems.bandwidth --most 1G --out runs/memory

copy is y = x with 2 S bytes moved, triad is y = a + 3 b with 3 S bytes, S being one array.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ConfigError
from zaya_jax.systems.command import make_parser, print_table, readable_bytes, write_json
from zaya_jax.systems.plots import plot_lines
from zaya_jax.systems.timing import median_seconds, parse_size, powers_between


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One operation and size."""

    operation: str
    bytes: int  # of one array
    seconds: float
    gb_s: float  # read and written, 10^9 bytes per second
    is_right: bool


def copy(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """Reads and writes every element; the sign keeps XLA from passing `x` on."""
    return -x


def triad(x: Float[Array, " n"]) -> Float[Array, " half"]:
    """a + 3 b, with the two halves of `x` as a and b."""
    half = x.shape[0] // 2
    return x[:half] + 3.0 * x[half:]


# What it does, and bytes moved for each byte of the input.
OPERATIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "copy": (copy, 2.0),
    "triad": (triad, 1.5),
}


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        sizes = powers_between(parse_size(arguments.least), parse_size(arguments.most))
    except ValueError as error:
        raise ConfigError(f"{error} is no size; write 1024, 64K, 16M or 1G") from None
    found = [measure(name, size, arguments.repeats) for name in OPERATIONS for size in sizes]
    device = jax.devices()[0].device_kind
    rows = [
        (
            one.operation,
            readable_bytes(one.bytes),
            f"{one.seconds * 1e6:,.1f} us",
            f"{one.gb_s:,.2f} GB/s",
            "right" if one.is_right else "WRONG",
        )
        for one in found
    ]
    print_table(f"one {device}", ("operation", "size", "time", "bandwidth", "result"), rows)
    if arguments.out:
        plain = [dataclasses.asdict(one) for one in found]
        write_json(arguments.out / "bandwidth.json", {"device": device, "measurements": plain})
        lines = {
            name: [(one.bytes, one.gb_s) for one in found if one.operation == name]
            for name in OPERATIONS
        }
        path = arguments.out / "bandwidth.svg"
        plot_lines(path, f"memory of {device}", lines, x_label="bytes", y_label="GB/s")
    return 0 if all(one.is_right for one in found) else 1


def measure(name: str, size: int, repeats: int) -> Measurement:
    """Times one operation on about `size` bytes of the first device."""
    function, moved = OPERATIONS[name]
    elements = max(size // 8, 1) * 2
    x = (jnp.arange(elements) % 1_024).astype(jnp.float32)
    run = jax.jit(function)
    # The same operation element by element on what each element must be.
    at = jnp.arange(run(x).shape[0])
    first, second = at % 1_024, (at + elements // 2) % 1_024
    expected = -first if name == "copy" else first + 3 * second
    is_right = bool(jnp.all(run(x) == expected))
    seconds = median_seconds(lambda: run(x), repeats)
    return Measurement(name, 4 * elements, seconds, moved * 4 * elements / seconds / 1e9, is_right)


def _parser() -> Parser:
    parser = make_parser(
        "bandwidth",
        "Times copies and triads in a device's memory over sizes, and checks every result.",
        "--most 64M --out runs/memory",
    )
    parser.add_argument("--least", default="64K", help="smallest array; default 64K")
    parser.add_argument("--most", default="1G", help="largest array; default 1G")
    parser.add_argument("--repeats", type=int, default=5, help="timings, whose median is shown")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON and a plot there")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
