"""Prints what a checkpoint holds: layout, geometry, dtypes, counts, router and scale statistics.

python -m zaya_jax.checkpoint.inspect DIR
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.checkpoint.layouts import LAYOUTS
from zaya_jax.checkpoint.open import open_intact
from zaya_jax.checkpoint.reader import Reader
from zaya_jax.checkpoint.tensor_rule import LeafPath, Precision
from zaya_jax.config import EXECUTION_FIELDS, INITIALIZATION_FIELDS

# Leaves whose size says whether training went well, and how they are called here.
_STATISTICS: tuple[tuple[str, LeafPath], ...] = (
    ("key temperature", ("params", "layers", "attention", "key_temperature")),
    ("router state scale", ("params", "router_state_scale")),
    ("router norm", ("params", "layers", "router", "norm", "weight")),
    ("router output", ("params", "layers", "router", "out", "weight")),
    ("input scale", ("params", "input_scale")),
    *(
        (f"{block} {vector}".replace("_", " "), ("params", "layers", f"{block}_residual", vector))
        for block in ("attention", "expert")
        for vector in (
            "hidden_states_scale",
            "residual_scale",
            "hidden_states_bias",
            "residual_bias",
        )
    ),
    ("attention norm", ("params", "layers", "attention_norm", "weight")),
    ("expert norm", ("params", "layers", "expert_norm", "weight")),
    ("final norm", ("params", "final_norm", "weight")),
)


def describe(reader: Reader) -> Iterator[str]:
    """The lines of the report."""
    yield f"path        {reader.path}"
    yield f"layout      {reader.layout}"
    yield f"parameters  {reader.parameter_count:,}"
    for name, layout in LAYOUTS.items():
        count = sum(len(rule.names(reader.config)) for rule in layout.rules(reader.config))
        yield f"tensors     {count:,} in the {name} layout"
    nbytes = sum(leaf.nbytes for leaf in reader.leaves.values())
    yield f"bytes       {nbytes:,}"
    yield "geometry"
    for name, value in reader.config.to_dict().items():
        if name not in EXECUTION_FIELDS | INITIALIZATION_FIELDS:
            shown = ", ".join(value) if isinstance(value, tuple) else value
            yield f"  {name:<26} {shown}"
    yield "dtypes"
    yield from _dtypes(reader)
    yield f"{'statistics':<34} {'mean':>10} {'deviation':>10} {'least':>10} {'most':>10}"
    for name, path in _STATISTICS:
        if path in reader.leaves:
            yield _statistics(name, reader.read_leaf(path))
    yield from _balancing(reader.read_leaf(("balancing", "biases")).astype(np.float32))
    if reader.companions:
        yield f"files along {', '.join(reader.companions)}"
    for key, value in reader.carried.items():
        yield f"{key:<15} {value}"
    for note in reader.notes:
        yield f"note        {note}"


def _dtypes(reader: Reader) -> Iterator[str]:
    counts: Counter[tuple[Precision, str]] = Counter()
    for leaf in reader.leaves.values():
        counts[leaf.rule.precision, leaf.dtype.name] += math.prod(leaf.shape)
    names = {
        Precision.MATRIX: "matrices",
        Precision.KEPT: "router, convolutions, norms, scales, biases",
        Precision.BALANCING: "balancing biases",
    }
    for (precision, dtype), count in counts.items():
        yield f"  {dtype:<10} {count:>16,}  {names[precision]}"


def _statistics(name: str, values: np.ndarray) -> str:
    wide = values.astype(np.float64)
    numbers = (wide.mean(), wide.std(), wide.min(), wide.max())
    return f"  {name:<32} " + " ".join(f"{number:>10.4g}" for number in numbers)


def _balancing(biases: np.ndarray) -> Iterator[str]:
    """Biases of the experts by layer, and whether the skip class can be chosen."""
    experts, skip = biases[:, :-1], biases[:, -1]
    yield _statistics("balancing biases of experts", experts)
    yield _statistics("balancing bias of the skip class", skip)
    # Probabilities lie in [0, 1]: a class that is behind by 1 is never chosen.
    closed = int((skip + 1.0 <= experts.max(axis=1)).sum())
    yield f"  the skip class can never be chosen in {closed} of {len(biases)} layers"


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = Parser(
        prog="python -m zaya_jax.checkpoint.inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="DIR", type=Path)
    options = parser.parse_args(argv)
    for line in describe(open_intact(options.path)):
        print(line)
    return 0


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
