"""Which parts of its arrays a process keeps on its own disk, and whether they are all it needs.

A part is a box: for each axis, where it starts and where it stops.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.strict_json import read_object

SHARDS = "shards"  # item of a checkpoint that holds the shards of one process
JSON_FILE = "metadata"  # what Orbax calls the file of a JSON item

Box = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Held:
    """Parts of one array that do not overlap."""

    shape: tuple[int, ...]
    boxes: tuple[Box, ...]

    def covers(self, wanted: Box) -> bool:
        """Whether every element of a box is in one of these."""
        common = (math.prod(_overlap(box, wanted)) for box in self.boxes)
        return sum(common) == math.prod(stop - start for start, stop in wanted)


def box_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """The box that a tuple of slices without steps takes out of an array."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def whole_box(shape: tuple[int, ...]) -> Box:
    """All of an array."""
    return tuple((0, size) for size in shape)


def first_missing(held: Mapping[str, Held], needed: Mapping[str, Iterable[Box]]) -> str:
    """The first array of which a needed part is not held; "" = all are.

    Arrays that are not held at all do not count: they are those of another model.
    """
    for name, boxes in needed.items():
        if name in held and not all(held[name].covers(box) for box in boxes):
            return name
    return ""


def holds_all(held: Mapping[str, Held]) -> bool:
    """Whether these are whole arrays."""
    return all(part.covers(whole_box(part.shape)) for part in held.values())


def shards_record(save: str, held: Mapping[str, Held]) -> dict[str, Any]:
    """As JSON. `save` names the save, the same in all processes."""
    arrays = {name: dataclasses.asdict(part) for name, part in held.items()}
    return {"save": save, "arrays": arrays}


def read_shards(step_directory: Path) -> tuple[str, dict[str, Held]]:
    """The save, and what is held of every array.

    Raises:
      CheckpointError: when the checkpoint does not say it.
    """
    file = step_directory / SHARDS / JSON_FILE
    record = read_object(file)
    try:
        held = {
            name: Held(
                tuple(map(int, part["shape"])),
                tuple(tuple((int(a), int(b)) for a, b in box) for box in part["boxes"]),
            )
            for name, part in record["arrays"].items()
        }
        return str(record["save"]), held
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} does not say which shards there are") from error


def check_is_whole(step_directory: Path) -> None:
    """Refuses a checkpoint that holds the shards of one process of several.

    Raises:
      CheckpointError: also when it does not say which ones.
    """
    if not (step_directory / SHARDS).exists():
        return
    if not holds_all(read_shards(step_directory)[1]):
        raise CheckpointError(
            f"{step_directory} holds only what one process of the run needs; choose a checkpoint "
            "beside the folder `local`"
        )


def _overlap(first: Box, second: Box) -> Iterable[int]:
    """Sizes of what two boxes share."""
    pairs = zip(first, second, strict=True)
    return (max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in pairs)
