"""One of several processes that share arrays and see another disk under the same name.

    python -m tests.checkpoint.local_writer INDEX COUNT PORT RUN DATA,FSDP LAST

Its working directory is its node. It checks what it goes on from and writes `found.json`, saves
every second step in its folder `disk` and every tenth in RUN, up to LAST, and writes `acknowledged`
when a step is durable.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.checkpoint.tiers import TieredCheckpoints
from zaya_jax.parallel.hosts import Hosts, initialize

CONFIG = CheckpointConfig(interval=10, local_directory="/proc/self/cwd/disk", local_interval=2)
_SHAPE = (64, 256)


def _trees(step: int, mesh: Mesh) -> dict[str, Any]:
    """One array that is split over `fsdp`, and others that are on every device."""
    table = np.arange(np.prod(_SHAPE), dtype=np.float32).reshape(_SHAPE) + step

    def placed(array: np.ndarray, *axes: str) -> jax.Array:
        sharding = NamedSharding(mesh, P(*axes))
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    return {
        "variables": {"split": placed(table, "fsdp"), "whole": placed(table[:3])},
        "training": {"step": placed(np.int32(step) + np.zeros((), np.int32))},
    }


def _check(restored: Any, expected: dict[str, Any]) -> None:
    found = {"variables": restored.variables, "training": restored.training}
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        for mine, wanted in zip(one.addressable_shards, other.addressable_shards, strict=True):
            np.testing.assert_array_equal(mine.data, wanted.data)


def main(index: int, count: int, port: int, run: Path, mesh_shape: list[int], last: int) -> None:
    """Goes on from what all find, up to the last step."""
    if count > 1:
        initialize(Hosts(f"127.0.0.1:{port}", count, index), os.environ)
    mesh = Mesh(np.array(jax.devices()).reshape(mesh_shape), ("data", "fsdp"))
    with TieredCheckpoints(run / "checkpoints", CONFIG) as checkpoints:
        found = checkpoints.find_latest(lambda: _trees(0, mesh))
        if found is not None:
            _check(checkpoints.restore(found.step, **_trees(0, mesh)), _trees(found.step, mesh))
        first = 0 if found is None else found.step
        checkpoints.set_aside_after(first)
        lines = [] if found is None else found.passed_over
        Path("found.json").write_text(json.dumps([first, lines]))
        for step in range(first + 1, last + 1):
            tier = CONFIG.tier_at(step, is_last=False)
            if tier is None:
                continue
            trees = _trees(step, mesh)
            checkpoints.save(step, **trees, data={"at": step}, metadata={}, tier=tier)
            checkpoints.wait()
            Path("acknowledged").write_text(str(step))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    _, index, count, port, run, mesh_shape, last = sys.argv
    shape = list(map(int, mesh_shape.split(",")))
    main(int(index), int(count), int(port), Path(run), shape, int(last))
