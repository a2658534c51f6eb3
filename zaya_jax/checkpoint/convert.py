"""Converts a checkpoint from any layout into any other, part by part, never whole in memory.

    python -m zaya_jax.checkpoint.convert SRC DST [--layout transformers|zyphra|orbax]

SRC is a folder downloaded from the hub, a converted checkpoint, a training run or one of its
checkpoints. Without --layout a released folder becomes an Orbax checkpoint, and an Orbax checkpoint
a folder that transformers loads. DST appears when it is complete.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.checkpoint.hub_config import CONFIG_FILE, hub_config_keys
from zaya_jax.checkpoint.hub_writer import HubWriter
from zaya_jax.checkpoint.layouts import LAYOUTS, TRANSFORMERS
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.checkpoint.orbax_reader import RELEASED, RELEASED_BALANCING, OrbaxReader
from zaya_jax.checkpoint.orbax_writer import OrbaxWriter
from zaya_jax.checkpoint.progress import Progress
from zaya_jax.checkpoint.reader import (
    BLOCK_BYTES,
    Index,
    Leaf,
    Reader,
    blocks,
    check_finite,
    common_block,
    grown_block,
)
from zaya_jax.checkpoint.tensor_rule import LeafPath, Precision
from zaya_jax.checkpoint.unfinished import finished_folder

ORBAX = OrbaxReader.layout
TARGET_LAYOUTS = (*LAYOUTS, ORBAX)
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

_THREADS = 4  # while one waits for the disk, another one checks, casts or checksums
_SHARD_BYTES = 5_000_000_000
_ROOM_FOR_SMALL_FILES = 64 << 20

Writer = HubWriter | OrbaxWriter


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
    show_progress: bool = False,
) -> Conversion:
    """Converts the checkpoint at `source` into a new folder `target`.

    Args:
      source: a released folder, a converted checkpoint, a run's folder or one of its checkpoints.
      target: must not exist; it appears when everything is on the disk.
      layout: "transformers", "zyphra" or "orbax"; None: orbax for a released folder, else
        transformers.
      dtype: "float32" or "bfloat16" for the matrices. Router, convolutions, norms, scales and
        biases are never narrowed, balancing biases become float32. None: all bytes stay as they
        are, except that balancing biases are always float32 in an Orbax checkpoint.
      max_shard_bytes: largest safetensors file.
      show_progress: on standard error.

    Raises:
      CheckpointError: when a tensor is not what it should be, or `target` cannot be written.
      ConfigError: when the configuration describes no model of this family.
    """
    source, target = Path(source), Path(target)
    reader = open_checkpoint(source)
    if isinstance(reader, OrbaxReader):
        damage = reader.find_damage()
        if damage is not None:
            raise CheckpointError(f"{reader.path} is damaged: {damage}; choose another checkpoint")
    layout = layout or (TRANSFORMERS.name if reader.layout == ORBAX else ORBAX)
    dtypes = {
        path: _target_dtype(reader, leaf, layout, dtype) for path, leaf in reader.leaves.items()
    }
    sizes = {path: math.prod(leaf.shape) * dtypes[path].itemsize for path, leaf in _items(reader)}
    nbytes = sum(sizes.values())
    with finished_folder(target, nbytes + _ROOM_FOR_SMALL_FILES) as folder:
        if layout == ORBAX:
            _write_orbax(reader, folder, dtypes, nbytes, show_progress)
        else:
            _write_hub(reader, folder, layout, dtypes, nbytes, max_shard_bytes, show_progress)
    return Conversion(
        reader.layout,
        layout,
        reader.parameter_count,
        nbytes,
        list(reader.companions),
        reader.notes,
    )


def _items(reader: Reader) -> Iterator[tuple[LeafPath, Leaf]]:
    yield from reader.leaves.items()


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


def _write_orbax(
    reader: Reader, folder: Path, dtypes: dict[LeafPath, np.dtype], nbytes: int, shown: bool
) -> None:
    arrays = {path: (leaf.shape, dtypes[path]) for path, leaf in reader.leaves.items()}
    writer = OrbaxWriter(folder, arrays)
    _copy_leaves(reader, writer, dtypes, nbytes, shown)
    for name, path in reader.companions.items():
        writer.add_file(f"{RELEASED}/{name}", path)
    if (reader.path / CONFIG_FILE).is_file():
        writer.add_file(f"{RELEASED}/{CONFIG_FILE}", reader.path / CONFIG_FILE)
    elif (reader.path / RELEASED / CONFIG_FILE).is_file():
        writer.add_file(f"{RELEASED}/{CONFIG_FILE}", reader.path / RELEASED / CONFIG_FILE)
    writer.finish(
        {
            "config": {"model": reader.config.to_dict()},
            RELEASED_BALANCING: reader.released_balancing.name,
        }
    )


def _write_hub(
    reader: Reader,
    folder: Path,
    layout: str,
    dtypes: dict[LeafPath, np.dtype],
    nbytes: int,
    max_shard_bytes: int,
    shown: bool,
) -> None:
    rules = LAYOUTS[layout].rules(reader.config)
    matrices = dtypes["params", "embedding"].name
    keys = hub_config_keys(reader.config, LAYOUTS[layout], reader.carried, matrices)
    writer = HubWriter(folder, reader.config, rules, dtypes, max_shard_bytes)
    try:
        _copy_leaves(reader, writer, dtypes, nbytes, shown)
        writer.finish(keys, reader.companions)
    finally:
        writer.close()


def _copy_leaves(
    reader: Reader, writer: Writer, dtypes: dict[LeafPath, np.dtype], nbytes: int, shown: bool
) -> None:
    """Reads, checks, casts and writes all blocks, a few at a time."""

    def copy(path: LeafPath, index: Index) -> int:
        block = reader.read(path, index)
        check_finite(reader, path, index, block)
        cast = block.astype(dtypes[path], copy=False)
        if cast is not block:
            check_finite(reader, path, index, cast)  # float32 may overflow bfloat16
        writer.write(path, index, cast)
        size = cast.nbytes
        del block, cast
        reader.release()
        return size

    label = f"converting {reader.path.name}"
    with Progress(label, nbytes, shown=shown) as progress:
        _run_bounded(copy, _all_blocks(reader, writer), progress.advance)


def _all_blocks(reader: Reader, writer: Writer) -> Iterator[tuple[int, LeafPath, Index]]:
    """Size, leaf and place of every block; blocks are whole chunks on both sides."""
    for path, leaf in reader.leaves.items():
        itemsize = leaf.dtype.itemsize
        unit = common_block(leaf.shape, leaf.chunk, writer.chunks[path])
        block = grown_block(leaf.shape, unit, itemsize, BLOCK_BYTES)
        for index in blocks(leaf.shape, block):
            size = itemsize * math.prod(part.stop - part.start for part in index)
            yield size, path, index


def _run_bounded(
    copy: Callable[[LeafPath, Index], int],
    work: Iterator[tuple[int, LeafPath, Index]],
    advance: Callable[[int], None],
) -> None:
    """Runs `copy` over all blocks in threads, with few bytes in memory at any time."""
    running: dict[concurrent.futures.Future[int], int] = {}
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        try:
            for size, path, index in work:
                while running and sum(running.values()) + size > _THREADS * BLOCK_BYTES:
                    _collect(running, advance)
                running[pool.submit(copy, path, index)] = size
            while running:
                _collect(running, advance)
        except BaseException:
            for future in running:
                future.cancel()
            raise


def _collect(
    running: dict[concurrent.futures.Future[int], int], advance: Callable[[int], None]
) -> None:
    """Takes out what has finished; raises what it raised."""
    done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
    for future in done:
        del running[future]
        advance(future.result())


def parse_size(text: str) -> int:
    """Bytes of "5GB", "500MB" or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    scale = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
    size = int(float(match.group(1)) * scale[match.group(2).upper()]) if match else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 5GB, 500MB or bytes")
    return size


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
    parser.add_argument("source", metavar="SRC", type=Path, help="folder to read")
    parser.add_argument("target", metavar="DST", type=Path, help="folder to make")
    parser.add_argument("--layout", choices=TARGET_LAYOUTS, help="of DST")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="of the matrices in DST")
    parser.add_argument(
        "--max-shard-size", type=parse_size, default=_SHARD_BYTES, help="default: 5GB"
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
