"""What a process keeps of its arrays, and whether it finds there what it needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint import private_orbax
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.private_orbax import needed_shards, written_shards
from zaya_jax.checkpoint.shards import Held, check_is_whole, first_missing, holds_all

LOWER, UPPER = ((0, 4), (0, 2)), ((4, 8), (0, 2))
WHOLE = ((0, 8), (0, 2))


@pytest.mark.parametrize(
    ("boxes", "wanted", "is_covered"),
    [
        ([LOWER, UPPER], WHOLE, True),
        ([LOWER, UPPER], ((2, 6), (1, 2)), True),
        ([LOWER], ((2, 4), (0, 2)), True),
        ([LOWER], ((2, 5), (0, 2)), False),
        ([], WHOLE, False),
    ],
)
def test_a_part_is_held_when_its_every_element_is(boxes: Any, wanted: Any, is_covered: bool):
    assert Held((8, 2), tuple(boxes)).covers(wanted) is is_covered
    assert Held((), ((),)).covers(())  # a scalar


def test_the_array_that_lacks_something_is_named():
    held = {"w": Held((8, 2), (LOWER,)), "step": Held((), ((),))}
    assert not holds_all(held)
    assert first_missing(held, {"w": [LOWER], "step": [()]}) == ""
    assert first_missing(held, {"w": [LOWER, UPPER], "step": [()]}) == "w"
    assert first_missing(held, {"other model": [WHOLE]}) == ""


def _placed(shape: tuple[int, int], *axes: str | None) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(shape), ("data", "fsdp"))
    return jax.device_put(np.zeros((8, 2), np.float32), NamedSharding(mesh, P(*axes)))


def test_one_process_writes_each_part_once_and_finds_all_of_it_on_any_mesh():
    saved = written_shards({"w": _placed((2, 2), "fsdp")})
    assert saved == {"['w']": Held((8, 2), (LOWER, UPPER))}
    other = needed_shards({"w": _placed((1, 4), "fsdp"), "on one device": np.zeros((8, 2))})
    assert len(other["['w']"]) == 4
    assert first_missing(saved, other) == ""


def test_what_orbax_does_not_write_of_an_uneven_mesh_is_not_taken_for_written(
    monkeypatch: pytest.MonkeyPatch,
):
    # A process with the third copy of the lower half and the first of the upper.
    shards = [
        SimpleNamespace(replica_id=2, index=(slice(0, 4), slice(None))),
        SimpleNamespace(replica_id=0, index=(slice(4, 8), slice(None))),
    ]
    monkeypatch.setattr(private_orbax.jax, "Array", SimpleNamespace)
    leaf = SimpleNamespace(shape=(8, 2), addressable_shards=shards)
    assert private_orbax._written_boxes(leaf) == (LOWER,)


def test_a_checkpoint_of_one_process_of_several_opens_nowhere(tmp_path: Path):
    check_is_whole(tmp_path)  # does not say so: it is an ordinary one
    (tmp_path / "shards").mkdir()
    file = tmp_path / "shards" / "metadata"
    part = '{"save": "a", "arrays": {"w": {"shape": [8, 2], "boxes": [[[0, 4], [0, 2]]]}}}'
    file.write_text(part)
    with pytest.raises(CheckpointError, match="what one process of the run needs"):
        check_is_whole(tmp_path)
    file.write_text(part.replace("[0, 4]", "[0, 8]"))
    check_is_whole(tmp_path)
    file.write_text('{"arrays": {"w": 3}}')
    with pytest.raises(CheckpointError, match="does not say which shards"):
        check_is_whole(tmp_path)
