"""Checkpoints of which every process keeps what it needs on the disk of its own node.

    FOLDER/process-<index>/<step>/variables, training, data, metadata, manifest.json
                                  shards     which parts of the arrays these are

FOLDER has the same name on all nodes; whether they see one disk or each its own does not matter.
A step counts only when every process finds it whole, undamaged and from the same save, and finds in
it all that it needs in this run. The processes agree on that, so they all take the same one.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from zaya_jax.checkpoint.agreement import (
    View,
    empty_disks,
    first_damage,
    reason_against,
    seen_steps,
)
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.manager import CheckpointManager, Restored
from zaya_jax.checkpoint.manifest import find_damage, is_finished, saved_steps
from zaya_jax.checkpoint.private_orbax import needed_shards, written_shards
from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.checkpoint.shards import Box, first_missing, holds_all, read_shards, shards_record
from zaya_jax.parallel.hosts import gather_texts

PROCESS = "process-"  # and its index: name of its folder

# The state a run would read, as {"variables": …, "training": …} with shapes and shardings.
Template = Callable[[], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class LocalFound:
    """The newest step all processes can go on from, and what was passed over to reach it."""

    step: int | None
    passed_over: tuple[tuple[int, str], ...] = ()  # step and a readable line
    is_damaged: bool = False  # whether one of those was


class LocalTier:
    """The local checkpoints of a run; all processes call its methods at the same time."""

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        """Changes nothing on disk."""
        self.folder = folder
        self._config = dataclasses.replace(config, keep_last=config.local_keep_last, keep_every=0)
        self._own = folder / f"{PROCESS}{jax.process_index()}"
        self._opened: CheckpointManager | None = None
        self._save_name = ""  # drawn by process 0 at the first save

    def find_latest(self, template: Template | None = None) -> LocalFound:
        """Agrees on a step. `template` says what is needed; None: all that was saved."""
        own = self._steps()
        needed = needed_shards(template()) if template is not None and own else None
        mine = {step: dataclasses.astuple(self._view(step, needed)) for step in own}
        views = [
            {int(step): View(*view) for step, view in json.loads(text).items()}
            for text in gather_texts(json.dumps(mine))
        ]
        steps = seen_steps(views)
        empty = empty_disks(views)
        if empty:
            listed = ", ".join(map(str, reversed(steps)))
            line = f"local checkpoints (of step {listed}) are not used: {empty} found none"
            return LocalFound(None, ((steps[0], line),))
        passed_over: list[tuple[int, str]] = []
        is_damaged = False
        for step in steps:
            reason = reason_against(step, views)
            if not reason:
                reason = first_damage(gather_texts(find_damage(self._own / str(step)) or ""))
                is_damaged |= bool(reason)
            if not reason:
                return LocalFound(step, tuple(passed_over))
            passed_over.append((step, f"local step {step} {reason}"))
        return LocalFound(None, tuple(passed_over), is_damaged)

    def set_aside_after(self, step: int) -> None:
        """Renames newer checkpoints, out of the run's way."""
        if self._steps():
            self._manager.set_aside_after(step)

    def metadata(self, step: int) -> dict[str, Any]:
        """What was saved about the run besides its state."""
        return self._manager.metadata(step)

    def restore(self, step: int, variables: Any, training: Any) -> Restored:
        """Reads a step that `find_latest` gave for such templates."""
        return self._manager.restore(step, variables, training)

    def save(
        self,
        step: int,
        *,
        variables: Any,
        training: Any,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any],
    ) -> None:
        """Starts writing what this process holds, like `CheckpointManager.save`.

        Raises:
          CheckpointError: also on a mesh of which Orbax would not write all that a process holds.
        """
        if not self._save_name:
            self._save_name = gather_texts(uuid.uuid4().hex)[0]
        trees = {"variables": variables, "training": training}
        held = written_shards(trees)
        missing = first_missing(held, needed_shards(trees))
        if missing:
            raise CheckpointError(
                f"checkpoint.local_directory={self._config.local_directory!r}: process "
                f"{jax.process_index()} holds parts of different copies of {missing}, and only one "
                "of them would be saved; choose a mesh that divides evenly among the processes, or "
                "leave it out"
            )
        self._manager.save(
            step,
            variables=variables,
            training=training,
            data=data,
            metadata=metadata,
            shards=shards_record(self._save_name, held),
        )

    def wait(self) -> None:
        """Blocks until what is being written is durable."""
        if self._opened is not None:
            self._opened.wait()

    def close(self) -> None:
        """Waits, then lets go of all threads."""
        if self._opened is not None:
            self._opened.close()

    @property
    def _manager(self) -> CheckpointManager:
        # Opened late: a disk that is gone matters to a run only when it writes to it.
        if self._opened is None:
            self._opened = CheckpointManager(self._own, self._config, is_private=True)
        return self._opened

    def _steps(self) -> list[int]:
        return saved_steps(self._own)

    def _view(self, step: int, needed: Mapping[str, set[Box]] | None) -> View:
        path = self._own / str(step)
        if not is_finished(path):
            return View("", "was not completely written")
        try:
            save, held = read_shards(path)
        except CheckpointError as error:
            return View("", f"cannot be used ({error})")
        if needed is None:
            return View(save, "" if holds_all(held) else "lacks parts of its arrays")
        missing = first_missing(held, needed)
        return View(save, f"lacks parts of {missing} that this mesh needs" if missing else "")


def newest_seen(folder: Path) -> int:
    """The newest step that a process has finished on disks seen from here; -1 where none is."""
    return max(
        (
            step
            for own in folder.glob(PROCESS + "*")
            for step in saved_steps(own)
            if is_finished(own / str(step))
        ),
        default=-1,
    )
