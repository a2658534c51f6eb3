"""Converts a checkpoint from any layout into any other, part by part, never whole in memory.

    python -m zaya_jax.checkpoint.convert SRC DST [--layout transformers|zyphra|orbax]

SRC is a folder downloaded from the hub, a converted checkpoint, a training run or one of its
checkpoints. Without --layout a released folder becomes an Orbax checkpoint, and an Orbax checkpoint
a folder that transformers loads. DST appears when it is complete.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.checkpoint.copying import Writer, copy_leaves
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.hub_config import CONFIG_FILE
from zaya_jax.checkpoint.hub_writer import HubWriter
from zaya_jax.checkpoint.layouts import LAYOUTS, TRANSFORMERS
from zaya_jax.checkpoint.manifest import saved_steps
from zaya_jax.checkpoint.open import open_intact
from zaya_jax.checkpoint.orbax_reader import (
    RELEASED,
    RELEASED_BALANCING,
    TOKEN_IDS,
    TRAINED_HERE,
    OrbaxReader,
)
from zaya_jax.checkpoint.orbax_writer import OrbaxWriter
from zaya_jax.checkpoint.progress import Progress
from zaya_jax.checkpoint.reader import Leaf, Reader
from zaya_jax.checkpoint.released_keys import hub_config_keys
from zaya_jax.checkpoint.skip_bias import SkipBias, differing_layers, shifted
from zaya_jax.checkpoint.tensor_rule import LeafPath, Precision
from zaya_jax.checkpoint.unfinished import check_target, finished_folder

ORBAX = OrbaxReader.layout
TARGET_LAYOUTS = (*LAYOUTS, ORBAX)
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

_SHARD_BYTES = 5_000_000_000
_ROOM_FOR_SMALL_FILES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What was converted into what."""

    source_layout: str
    target_layout: str
    parameters: int
    nbytes: int
    companions: list[str]
    notes: list[str]


def convert(
    source: str | Path,
    target: str | Path,
    *,
    layout: str | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = _SHARD_BYTES,
    skip_bias: SkipBias | None = None,
    show_progress: bool = False,
) -> Conversion:
    """Converts the checkpoint at `source` into a new folder `target`.

    Args:
      source: a released folder, a converted checkpoint, a run's folder or one of its checkpoints.
      target: must not exist, or be empty, and not lie in `source`; it appears when everything is
        on the disk.
      layout: "transformers", "zyphra" or "orbax"; None: orbax for a released folder, else
        transformers.
      dtype: "float32" or "bfloat16" for the matrices. Router, convolutions, norms, scales and
        biases are never narrowed, balancing biases become float32. None: all bytes stay as they
        are, except that balancing biases are always float32 in an Orbax checkpoint.
      max_shard_bytes: largest safetensors file.
      skip_bias: see `checkpoint.skip_bias`; None: "shift" when a checkpoint that was trained here
        is made into a folder for transformers, else "keep".
      show_progress: on standard error.

    Raises:
      CheckpointError: when a tensor is not what it should be, or `target` cannot be written.
      ConfigError: when the configuration describes no model of this family.
    """
    source = Path(source)
    target = check_target(target, source)
    if target.parent.name == "checkpoints" and saved_steps(target.parent):
        raise CheckpointError(f"{target} lies among the checkpoints of a run; choose another place")
    reader = open_intact(source)
    layout = layout or (TRANSFORMERS.name if reader.layout == ORBAX else ORBAX)
    if skip_bias is SkipBias.SHIFT and layout != TRANSFORMERS.name:
        raise CheckpointError(f"skip_bias shift is for the layout transformers, not for {layout}")
    dtypes = {
        path: _target_dtype(reader, leaf, layout, dtype) for path, leaf in reader.leaves.items()
    }
    replaced, notes = _balancing(reader, layout, skip_bias)
    dtypes |= {path: array.dtype for path, array in replaced.items()}
    nbytes = sum(
        math.prod(leaf.shape) * dtypes[path].itemsize for path, leaf in reader.leaves.items()
    )
    label = f"converting {source.name}"
    with finished_folder(target, nbytes + _ROOM_FOR_SMALL_FILES) as folder:
        writer, finish = _open_writer(reader, folder, layout, dtypes, max_shard_bytes)
        with Progress(label, nbytes, shown=show_progress) as progress:
            copy_leaves(reader, writer, dtypes, replaced, progress.advance)
            finish()
    return Conversion(
        reader.layout,
        layout,
        reader.parameter_count,
        nbytes,
        list(reader.companions),
        [*reader.notes, *notes],
    )


def _open_writer(
    reader: Reader,
    folder: Path,
    layout: str,
    dtypes: dict[LeafPath, np.dtype],
    max_shard_bytes: int,
) -> tuple[Writer, Callable[[], None]]:
    """The writer of a layout, and what to call when all tensors are written."""
    if layout == ORBAX:
        arrays = {path: (leaf.shape, dtypes[path]) for path, leaf in reader.leaves.items()}
        orbax = OrbaxWriter(folder, arrays)
        return orbax, functools.partial(_finish_orbax, reader, orbax)
    names = LAYOUTS[layout]
    matrices = dtypes["params", "embedding"].name
    keys = hub_config_keys(reader.config, names, reader.carried, matrices)
    hub = HubWriter(folder, reader.config, names.rules(reader.config), dtypes, max_shard_bytes)
    return hub, functools.partial(hub.finish, keys, reader.companions)


def _target_dtype(reader: Reader, leaf: Leaf, layout: str, dtype: str | None) -> np.dtype:
    """The dtype a leaf is written in."""
    precision = leaf.rule.precision
    if precision is Precision.BALANCING:
        if dtype is None and layout != ORBAX:
            return reader.released_balancing
        return DTYPES["float32"]
    if dtype is None:
        return leaf.dtype
    wanted = DTYPES[dtype]
    if precision is Precision.MATRIX:
        return wanted
    return max(leaf.dtype, wanted, key=lambda candidate: candidate.itemsize)


def _balancing(
    reader: Reader, layout: str, choice: SkipBias | None
) -> tuple[dict[LeafPath, np.ndarray], list[str]]:
    """Balancing biases to write instead of the stored ones, if any, and remarks about them."""
    path = ("balancing", "biases")
    biases = reader.read_leaf(path)
    count = differing_layers(biases)
    if layout != TRANSFORMERS.name or not count:
        return {}, []
    choice = choice or (SkipBias.SHIFT if reader.is_trained_here else SkipBias.KEEP)
    what = f"the skip class's balancing bias is not -1 in {count} layers; transformers makes it -1"
    if choice is SkipBias.KEEP:
        return {}, [f"{what} on loading, which changes routing; --skip-bias shift prevents that"]
    note = f"{what}, so all biases of these layers were moved together; routing is unchanged"
    return {path: shifted(biases)}, [note]


def _finish_orbax(reader: Reader, writer: OrbaxWriter) -> None:
    """Files that travel along, and all descriptions."""
    for name, path in reader.companions.items():
        writer.add_file(f"{RELEASED}/{name}", path)
    for folder in (reader.path, reader.path / RELEASED):
        if (folder / CONFIG_FILE).is_file():
            writer.add_file(f"{RELEASED}/{CONFIG_FILE}", folder / CONFIG_FILE)
    writer.finish(
        {
            "config": {"model": reader.config.to_dict()},
            RELEASED_BALANCING: reader.released_balancing.name,
            TRAINED_HERE: reader.is_trained_here,
            TOKEN_IDS: reader.carried,
        }
    )


def parse_size(text: str) -> int:
    """Bytes of "5GB", "500MB" or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    scale = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
    size = float(match.group(1)) * scale[match.group(2).upper()] if match else 0.0
    if not 1 <= size < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 5GB, 500MB or bytes")
    return int(size)


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!a} names no folder")
    return Path(text)


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = Parser(
        prog="python -m zaya_jax.checkpoint.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "direction",
        nargs="?",
        choices=("hf-to-orbax", "orbax-to-hf"),
        help="may be left out: SRC and --layout decide",
    )
    parser.add_argument("source", metavar="SRC", type=_folder, help="folder to read")
    parser.add_argument("target", metavar="DST", type=_folder, help="folder to make")
    parser.add_argument("--layout", choices=TARGET_LAYOUTS, help="of DST")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="of the matrices in DST")
    parser.add_argument(
        "--max-shard-size", type=parse_size, default=_SHARD_BYTES, help="default: 5GB"
    )
    parser.add_argument(
        "--skip-bias",
        choices=[choice.value for choice in SkipBias],
        help="balancing biases for transformers: keep, or shift so that the skip class has -1; "
        "default: shift for what was trained here",
    )
    options = parser.parse_args(argv)
    if options.direction == "hf-to-orbax" and options.layout not in (None, ORBAX):
        parser.error(f"hf-to-orbax makes an Orbax checkpoint, not --layout {options.layout}")
    if options.direction == "orbax-to-hf" and options.layout == ORBAX:
        parser.error("orbax-to-hf makes a released folder, not --layout orbax")
    default = {"hf-to-orbax": ORBAX, "orbax-to-hf": TRANSFORMERS.name}
    done = convert(
        options.source,
        options.target,
        layout=options.layout or default.get(options.direction),
        dtype=options.dtype,
        max_shard_bytes=options.max_shard_size,
        skip_bias=options.skip_bias and SkipBias(options.skip_bias),
        show_progress=True,
    )
    for note in done.notes:
        print(f"note: {note}")
    along = f"; along with it: {', '.join(done.companions)}" if done.companions else ""
    print(
        f"{options.source} ({done.source_layout}) -> {options.target} ({done.target_layout}): "
        f"{done.parameters:,} parameters, {done.nbytes:,} bytes{along}"
    )
    return 0


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
