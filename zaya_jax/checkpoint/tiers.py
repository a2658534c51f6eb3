"""Checkpoints of a run in two tiers: durable ones, and more frequent ones on a fast disk.

    DIR/checkpoints/<step>      durable, every `checkpoint.interval` steps
    DIR/checkpoints/local       a link to this run's folder in `checkpoint.local_directory`,
                                which gets one every `checkpoint.local_interval` steps

Each tier is a `CheckpointManager`, with its own Orbax manager, retention and manifests. A run goes
on from the newest intact checkpoint of either. The link belongs to the run: a new run at the same
place does not find the fast checkpoints of an old one, and a disk that is gone costs only the steps
since the last durable one.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.manager import CheckpointManager, Found, Restored, saved_steps
from zaya_jax.checkpoint.manifest import is_finished
from zaya_jax.checkpoint.settings import CheckpointConfig, Tier

LOCAL = "local"


def last_finished(directory: Path) -> int:
    """The newest finished checkpoint of either tier, unverified; -1 where there is none."""
    folders = (directory, directory / LOCAL)
    finished = [
        step
        for folder in folders
        for step in saved_steps(folder)
        if is_finished(folder / str(step))
    ]
    return max(finished, default=-1)


class TieredCheckpoints:
    """Both tiers as one; used like a `CheckpointManager`."""

    def __init__(self, directory: Path, config: CheckpointConfig) -> None:
        """Changes nothing on disk.

        Raises:
          CheckpointError: when a folder cannot be made or written to.
        """
        self._config, self._link = config, directory / LOCAL
        self._durable = CheckpointManager(directory, config)
        self._local = self._open_local() if self._link.is_dir() else None
        self._holder: dict[int, CheckpointManager] = {}  # of steps found intact
        if config.local_directory:  # refuse a bad one now rather than at the first save
            CheckpointManager(Path(config.local_directory), config).close()

    def __enter__(self) -> TieredCheckpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find_latest(self) -> Found | None:
        """The newest intact checkpoint of either tier; None when none was ever finished.

        Raises:
          CheckpointError: when there are finished checkpoints and all are damaged.
        """
        best: Found | None = None
        passed_over, errors = [], []
        for manager in self._tiers():
            name = "" if manager is self._durable else "local "
            try:
                found = manager.find_latest()
            except CheckpointError as error:
                errors.append(error)
                passed_over.append(str(error))
                continue
            if found is None:
                continue
            passed_over += [name + line for line in found.passed_over]
            if best is None or found.step >= best.step:
                best = found
                self._holder[found.step] = manager
        if best is None and errors:
            raise errors[0]
        return None if best is None else Found(best.step, passed_over)

    def set_aside_after(self, step: int) -> None:
        """Renames newer checkpoints of both tiers, out of the run's way."""
        for manager in self._tiers():
            manager.set_aside_after(step)

    def metadata(self, step: int) -> dict[str, Any]:
        """What was saved about the run besides its state."""
        return self._holder.get(step, self._durable).metadata(step)

    def restore(self, step: int, variables: Any, training: Any) -> Restored:
        """Reads a checkpoint that `find_latest` gave, like `CheckpointManager.restore`."""
        return self._holder.get(step, self._durable).restore(step, variables, training)

    def save(
        self,
        step: int,
        *,
        variables: Any,
        training: Any,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any],
        tier: Tier = Tier.DURABLE,
    ) -> None:
        """Starts writing a checkpoint into a tier, like `CheckpointManager.save`."""
        self.wait()  # also for the other tier, so that there is one copy of the state at a time
        if tier is Tier.LOCAL and not self._has_own_link():
            self._make_link()
        manager = self._durable if tier is Tier.DURABLE else self._local
        assert manager is not None
        manager.save(step, variables=variables, training=training, data=data, metadata=metadata)
        self._holder[step] = manager

    def wait(self) -> None:
        """Blocks until what is being written is durable."""
        for manager in self._tiers():
            manager.wait()

    def close(self) -> None:
        """Waits, then lets go of all threads."""
        for manager in self._tiers():
            manager.close()

    def _tiers(self) -> list[CheckpointManager]:
        return [self._durable, *([] if self._local is None else [self._local])]

    def _open_local(self) -> CheckpointManager:
        own = dataclasses.replace(
            self._config, keep_last=self._config.local_keep_last, keep_every=0
        )
        return CheckpointManager(self._link.resolve(), own)

    def _has_own_link(self) -> bool:
        wanted = Path(self._config.local_directory).resolve()
        return self._local is not None and self._link.resolve().parent == wanted

    def _make_link(self) -> None:
        """A new folder on the fast disk, and the link to it.

        Raises:
          CheckpointError: when the folder is not one that all processes see.
        """
        if self._local is not None:
            self._local.close()
        if jax.process_index() == 0:
            folder = Path(self._config.local_directory).resolve() / uuid.uuid4().hex
            folder.mkdir(parents=True)
            self._link.parent.mkdir(parents=True, exist_ok=True)
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(folder, target_is_directory=True)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("checkpoint.local_directory")
            if not multihost_utils.process_allgather(np.int32(self._link.is_dir())).all():
                raise CheckpointError(
                    f"checkpoint.local_directory={self._config.local_directory!r} is not the same "
                    "folder for all processes; give one that they share, or leave it out"
                )
        self._local = self._open_local()
