"""Times exchanges between devices and checks every result.

    python -m zaya_jax.systems.collectives --groups 2,4,8 --most 64M --out runs/links

Algorithm bandwidth is bytes over seconds; bus bandwidth corrects it for how often a byte crosses a
link, so that figures of different operations and group sizes compare (conventions of the NCCL and
RCCL tests). The status is 1 when a result is wrong.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ConfigError
from zaya_jax.systems.command import make_parser, print_table, readable_bytes, write_json
from zaya_jax.systems.exchanges import AXIS, EXCHANGES, Exchange, fill
from zaya_jax.systems.plots import plot_lines
from zaya_jax.systems.timing import median_seconds, parse_size, powers_between


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One operation, size and group."""

    operation: str
    devices: int
    bytes: int
    seconds: float
    wrong_elements: int

    @property
    def algorithm_gb_s(self) -> float:
        """10^9 bytes per second of the operation's size."""
        return self.bytes / self.seconds / 1e9

    @property
    def bus_gb_s(self) -> float:
        """The same, corrected for how often a byte crosses a link."""
        return self.algorithm_gb_s * EXCHANGES[self.operation].bus_factor(self.devices)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    devices = jax.devices()
    groups = _groups(arguments.groups, len(devices))
    names = arguments.operations.split(",") if arguments.operations else list(EXCHANGES)
    for name in names:
        if name not in EXCHANGES:
            raise ConfigError(f"--operations={name!r} is none of: {', '.join(EXCHANGES)}")
    sizes = powers_between(_size("--least", arguments.least), _size("--most", arguments.most))
    found = [
        measure(EXCHANGES[name], devices[:group], size, arguments.repeats)
        for name in names
        for group in groups
        for size in sizes
    ]
    print(f"{len(devices)} x {devices[0].device_kind}, {jax.process_count()} processes")
    _print(found)
    if arguments.out:
        _write(arguments.out, found, devices[0].device_kind)
    wrong = [one for one in found if one.wrong_elements]
    for one in wrong:
        print(
            f"error: {one.operation} of {one.bytes:,} bytes on {one.devices} devices gave "
            f"{one.wrong_elements:,} wrong elements; do not train on these devices",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def measure(
    exchange: Exchange, devices: Sequence[jax.Device], size: int, repeats: int
) -> Measurement:
    """Times one exchange of about `size` bytes among the devices, and counts wrong elements."""
    count = len(devices)
    mesh = Mesh(np.array(devices), (AXIS,))
    split = NamedSharding(mesh, PartitionSpec(AXIS))
    elements = max(size // 4 // count, 1) * (1 if exchange.holds_part else count)

    def on_mesh(body: Callable[..., Array], inputs: int) -> Callable[..., Array]:
        specs = (PartitionSpec(AXIS),) * inputs
        mapped = jax.shard_map(
            body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(AXIS), check_vma=False
        )
        return jax.jit(mapped, out_shardings=split)

    filled = on_mesh(lambda: fill(jax.lax.axis_index(AXIS), jnp.arange(elements)), 0)()
    run = on_mesh(lambda x: exchange.run(x, count), 1)

    def count_wrong(result: Array) -> Array:
        expected = exchange.expected(elements, jax.lax.axis_index(AXIS), count)
        return jnp.sum(result != expected)[None]

    wrong = int(on_mesh(count_wrong, 1)(run(filled)).sum())
    seconds = median_seconds(lambda: run(filled), repeats)
    actual = 4 * elements * (count if exchange.holds_part else 1)
    return Measurement(exchange.name, count, actual, seconds, wrong)


def _groups(text: str, present: int) -> list[int]:
    """Sizes of groups; "" means 2, 4, … up to all devices.

    Raises:
      ConfigError: for a group that there are no devices for.
    """
    if not text:
        doubled = [2**power for power in range(1, present.bit_length()) if 2**power < present]
        return sorted({*doubled, present} - {1}) or _groups("2", present)
    try:
        groups = [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--groups={text!r}: give numbers of devices, like 2,4,8") from None
    for group in groups:
        if not 2 <= group <= present:
            raise ConfigError(
                f"--groups={group}: an exchange takes from 2 to {present} devices here; on a CPU "
                "set XLA_FLAGS=--xla_force_host_platform_device_count=8"
            )
    return groups


def _size(flag: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise ConfigError(f"{flag}={text!r} is no size; write 1024, 64K, 16M or 1G") from None


def _print(found: list[Measurement]) -> None:
    columns = ("operation", "devices", "size", "time", "algorithm", "bus", "result")
    rows = [
        (
            one.operation,
            one.devices,
            readable_bytes(one.bytes),
            f"{one.seconds * 1e6:,.1f} us",
            f"{one.algorithm_gb_s:,.3f} GB/s",
            f"{one.bus_gb_s:,.3f} GB/s",
            "right" if one.wrong_elements == 0 else f"{one.wrong_elements:,} WRONG",
        )
        for one in found
    ]
    print_table("", columns, rows)


def _write(folder: Path, found: list[Measurement], device_kind: str) -> None:
    plain = [
        dataclasses.asdict(one) | {"algorithm_gb_s": one.algorithm_gb_s, "bus_gb_s": one.bus_gb_s}
        for one in found
    ]
    write_json(folder / "collectives.json", {"device": device_kind, "measurements": plain})
    for name in dict.fromkeys(one.operation for one in found):
        lines: dict[str, list[tuple[float, float]]] = {}
        for one in found:
            if one.operation == name:
                lines.setdefault(f"{one.devices} devices", []).append((one.bytes, one.bus_gb_s))
        plot_lines(
            folder / f"{name}.svg",
            f"{name} on {device_kind}",
            lines,
            x_label="bytes",
            y_label="bus bandwidth, GB/s",
        )
    print(f"written: {folder}")


def _parser() -> Parser:
    parser = make_parser(
        "collectives",
        "Times exchanges between devices over sizes and groups, and checks every result.",
        "--groups 2,4,8 --most 64M --out runs/links",
    )
    parser.add_argument("--operations", default="", help=f"default: {','.join(EXCHANGES)}")
    parser.add_argument("--groups", default="", help="sizes of groups; default: 2, 4, … all")
    parser.add_argument("--least", default="1K", help="smallest message; default 1K")
    parser.add_argument("--most", default="1G", help="largest message; default 1G")
    parser.add_argument("--repeats", type=int, default=5, help="timings, whose median is shown")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON and plots there")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
