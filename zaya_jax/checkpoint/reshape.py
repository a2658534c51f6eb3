"""Copies a checkpoint of a run into a new folder, verified, whatever mesh wrote it.

    python -m zaya_jax.checkpoint.reshape runs/large/checkpoints/4000 /scratch/moved --shards 8

A run reads any checkpoint onto its own mesh without this. Offline it is of use to change how the
files are cut (`--shards`: parts of the largest axis, so that as many hosts read a part each), to
leave out the optimiser (`--variables-only`), or to move a checkpoint with its checksums proved on
both sides.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.checkpoint.manager import CheckpointError, read_json
from zaya_jax.checkpoint.manifest import find_damage, write_manifest
from zaya_jax.checkpoint.orbax_reader import find_checkpoint
from zaya_jax.checkpoint.unfinished import finished_folder

_JSON_ITEMS = ("data", "metadata")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.shards < 1:
        raise CheckpointError(f"--shards={arguments.shards}: must be at least 1")
    if arguments.shards > 1:
        _use_virtual_devices(arguments.shards)
    reshape(
        arguments.source,
        arguments.target,
        shards=arguments.shards,
        variables_only=arguments.variables_only,
    )
    print(f"{arguments.target}: written, read back and equal in every bit")
    return 0


def reshape(source: Path, target: Path, *, shards: int = 1, variables_only: bool = False) -> None:
    """Copies the checkpoint at `source`, a run or one of its steps, to `target`, which is new.

    Args:
      source: a run's folder (its newest finished checkpoint), or one checkpoint.
      target: folder of the copy; named like a step (`…/checkpoints/4000`) a run goes on from it.
      shards: parts that each array is written in, where one of its axes allows; as many JAX devices
        are needed.
      variables_only: leave out the optimiser's state and the position in the data.

    Raises:
      CheckpointError: when the source is damaged, the target exists, or the copy differs.
    """
    folder = find_checkpoint(source)
    damage = find_damage(folder)
    if damage is not None:
        raise CheckpointError(f"{folder} is damaged: {damage}; choose another checkpoint")
    items: tuple[str, ...] = ("variables",) if variables_only else ("variables", "training")
    items = tuple(name for name in items if (folder / name).is_dir())
    needed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with finished_folder(target, needed) as unfinished:
        for item in items:
            tree = _read(folder / item, shards)
            with ocp.StandardCheckpointer() as writer:
                writer.save((unfinished / item).absolute(), tree)
                writer.wait_until_finished()
            _check_equal(tree, _read(unfinished / item, 1), item)
        for item in _JSON_ITEMS:
            if (folder / item).is_dir() and not (variables_only and item == "data"):
                with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as json_writer:
                    json_writer.save((unfinished / item).absolute(), read_json(folder, item))
        write_manifest(unfinished)


def _read(path: Path, shards: int) -> Any:
    """All arrays of an item, split into parts where an axis allows."""
    mesh = Mesh(np.array(jax.devices()[:shards]), ("part",))
    with ocp.StandardCheckpointer() as reader:
        described = reader.metadata(path.absolute())
        tree = getattr(described, "item_metadata", described)
        template = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, _split(leaf.shape, shards))
            ),
            tree,
        )
        return reader.restore(path.absolute(), template)


def _split(shape: tuple[int, ...], shards: int) -> PartitionSpec:
    """The largest axis that the parts divide; whole where there is none."""
    fitting = [axis for axis, size in enumerate(shape) if size % shards == 0 and size >= shards]
    if shards == 1 or not fitting or math.prod(shape) < 2 * shards:
        return PartitionSpec()
    largest = max(fitting, key=lambda axis: shape[axis])
    return PartitionSpec(*("part" if axis == largest else None for axis in range(len(shape))))


def _check_equal(one: Any, other: Any, item: str) -> None:
    for (path, left), right in zip(
        jax.tree_util.tree_flatten_with_path(one)[0], jax.tree.leaves(other), strict=True
    ):
        if np.asarray(left).tobytes() != np.asarray(right).tobytes():
            name = jax.tree_util.keystr(path)
            raise CheckpointError(f"{item}{name} differs after it was written; check the disk")


def _use_virtual_devices(count: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m zaya_jax.checkpoint.reshape",
        description="Copies a checkpoint into a new folder, cut as asked, and verifies the copy.",
        epilog="example:\n  python -m zaya_jax.checkpoint.reshape runs/demo "
        "runs/moved/checkpoints/280 --shards 4",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", type=Path, help="a run, or one checkpoint")
    parser.add_argument("target", type=Path, help="folder of the copy; must not exist")
    parser.add_argument("--shards", type=int, default=1, help="parts of each array")
    parser.add_argument("--variables-only", action="store_true", help="without optimiser and data")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
