"""How fast are the kernels? On a GPU against their peers; on a CPU, tiny, for regressions.

    python -m benchmarks.gpu_kernels --json benchmarks/results/gpu_kernels_h200.json

On a GPU: one run at the sizes of ZAYA1-8B, Pallas against the XLA form and the usual peer (cuDNN
attention, ``jax.lax.ragged_dot`` inside the XLA form of the experts, a dense product, a device
copy). On a CPU the XLA forms run at tiny sizes: figures to compare with an earlier run on the same
machine, not statements about a GPU.

The outputs of all forms are compared first. Every round draws fresh random data on the device and
runs every form once; figures are medians over rounds of the time the device was busy, from the
profiler (on a CPU: of the clock). A form's temporary memory is what its compiled program asks for.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu_kernel_cases import GROUPS, ON_GPU, Operation, head_sizes
from kernels_pallas.device_time import seconds
from kernels_pallas.offline_compile import LineParser

# (what, form) that is to be no slower than the share of (peer, form): the limits that are wanted.
WANTED = (
    *(
        (f"attention {seq}{way}", "pallas", f"attention {seq}{way}", "cudnn", share)
        for seq in (4096, 16384, 65536)
        for way, share in (("", 0.8), (" gradient", 0.7))
    ),
    ("experts balanced", "pallas", "dense product of the experts' FLOPs", "xla", 0.75),
    ("experts 4:1", "pallas", "dense product of the experts' FLOPs", "xla", 0.6),
    ("experts balanced", "pallas", "experts balanced", "xla", 1.0),
    ("experts 4:1", "pallas", "experts 4:1", "xla", 1.0),
    ("cross entropy", "pallas", "head product", "xla", 1 / 1.15),
    ("CCA block", "pallas", "MHA block", "pallas", 1.4),
    ("CCA block", "cudnn", "MHA block", "cudnn", 1.4),
)
WANTED_BANDWIDTH = {"cca": 0.75, "norm": 0.85, "attention decode": 0.7}  # share of the copy's


@dataclasses.dataclass(frozen=True)
class Row:
    """What one form took."""

    name: str
    form: str
    milliseconds: float
    fastest: float
    slowest: float
    temporary_bytes: int
    least_bytes: int


def check(name: str, outputs: dict[str, Any]) -> None:
    """Raise unless all forms of an operation agree.

    bfloat16 results of sums in another order differ by a few units in the last place of the largest
    entry; a wrong tile or mask is off by the entry itself.
    """
    reference_form, reference = next(reversed(outputs.items()))
    for form, output in outputs.items():
        pairs = zip(jax.tree.leaves(output), jax.tree.leaves(reference), strict=True)
        for pair in pairs:
            if not jnp.issubdtype(pair[0].dtype, jnp.floating):
                continue
            a, b = (leaf.astype(jnp.float32) for leaf in pair)
            error = float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1e-30))
            if not error < 3e-2:
                raise AssertionError(
                    f"{name}: {form} and {reference_form} differ by {error:.1e} of the largest"
                )


def measure(operation: Operation, rounds: int, seed: int) -> list[Row]:
    """Compile, compare, then time every form once a round on data drawn for that round."""
    key = jax.random.key(seed)
    draw = jax.jit(operation.draw)
    first = draw(key)
    compiled = {
        form: jax.jit(function).lower(*first).compile()
        for form, function in operation.forms.items()
    }
    check(operation.name, {form: run(*first) for form, run in compiled.items()})
    del first
    times: dict[str, list[float]] = {form: [] for form in compiled}
    for number in range(rounds):
        arguments = jax.block_until_ready(draw(jax.random.fold_in(key, number)))
        for form, run in compiled.items():
            times[form].append(1e3 * seconds(functools.partial(run, *arguments)))
    return [
        Row(
            operation.name,
            form,
            statistics.median(found),
            min(found),
            max(found),
            compiled[form].memory_analysis().temp_size_in_bytes,
            operation.least_bytes,
        )
        for form, found in times.items()
    ]


def comparisons(rows: list[Row], logits_bytes: int) -> list[dict[str, Any]]:
    """What is wanted beside what was measured, where both sides ran."""
    by_name = {(row.name, row.form): row for row in rows}
    found = []
    for name, form, peer, peer_form, share in WANTED:
        ours, theirs = by_name.get((name, form)), by_name.get((peer, peer_form))
        if ours and theirs:
            label = f"{name} ({form}): speed relative to {peer} ({peer_form})"
            value = theirs.milliseconds / ours.milliseconds
            found.append({"what": label, "measured": value, "wanted": share})
    loss = by_name.get(("cross entropy gradient", "pallas"))
    if loss:
        value = loss.temporary_bytes / logits_bytes
        label = "cross entropy gradient (pallas): temporary memory relative to the logits"
        found.append({"what": label, "measured": value, "wanted": 0.05})
    copy = by_name["copy", "xla"]
    for name, share in WANTED_BANDWIDTH.items():
        row = by_name.get((name, "pallas"))
        if row:
            value = row.least_bytes / row.milliseconds * copy.milliseconds / copy.least_bytes
            label = f"{name} (pallas): bandwidth relative to a copy"
            found.append({"what": label, "measured": value, "wanted": share})
    return found


def _options() -> argparse.Namespace:
    parser = LineParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="at least 1 (15)")
    parser.add_argument("--only", help="operations whose name contains this")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    if options.json:  # known before the measuring, which takes long
        try:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            _beside(options.json).touch()
            _beside(options.json).unlink()
        except OSError as error:
            parser.error(f"--json {options.json}: {error.strerror}")
    return options


def _beside(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(f"{path.name}.partial")


def main() -> None:
    options = _options()
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}: medians of {options.rounds} rounds, milliseconds")
    rows: list[Row] = []
    for operation in (operation for group in GROUPS for operation in group()):
        if options.only and options.only not in operation.name and operation.name != "copy":
            continue
        for row in measure(operation, options.rounds, time.time_ns() % 2**31):
            rows.append(row)
            temporary = f"{row.temporary_bytes / 2**20:10.1f} MiB"
            print(f"{row.name:38s}{row.form:>8s}{row.milliseconds:12.3f}{temporary}", flush=True)
    if options.only and not any(options.only in row.name for row in rows):
        raise SystemExit(f"error: --only {options.only}: no operation has that in its name")
    compared = comparisons(rows, logits_bytes=4 * math.prod(head_sizes()[::2]))
    for entry in compared:
        print(f"{entry['what']}: {entry['measured']:.2f} (wanted {entry['wanted']:.2f})")
    if options.json:
        record = {
            "device": device,
            "jax": jax.__version__,
            "time": "device" if ON_GPU else "host clock",
            "rounds": options.rounds,
            "rows": [dataclasses.asdict(row) for row in rows],
            "comparisons": compared,
        }
        unfinished = _beside(options.json)
        unfinished.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(options.json)


if __name__ == "__main__":
    main()
