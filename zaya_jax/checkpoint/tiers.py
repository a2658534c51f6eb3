"""Checkpoints of a run in two tiers: durable ones, and more frequent ones on a fast disk.

    DIR/checkpoints/<step>      durable, every `checkpoint.interval` steps
    DIR/checkpoints/local       a link to this run's folder in `checkpoint.local_directory`,
                                which gets one every `checkpoint.local_interval` steps

Each tier has its own Orbax manager, retention and manifests. A run goes on from the newest intact
checkpoint of either. The link belongs to the run: a new run at the same place does not find the
fast checkpoints of an old one, and a disk that is gone costs only the steps since the last durable
one. All processes see DIR; the folder on the fast disk may be another one on every node.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zaya_jax.checkpoint.disk_errors import check_writable
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.local_tier import LocalFound, LocalTier, Template, newest_seen
from zaya_jax.checkpoint.manager import CheckpointManager, Found, Restored, saved_steps
from zaya_jax.checkpoint.manifest import is_finished
from zaya_jax.checkpoint.settings import CheckpointConfig, Tier
from zaya_jax.parallel.hosts import gather_texts, is_first_process

LOCAL = "local"


def last_finished(directory: Path) -> int:
    """The newest finished checkpoint of either tier seen from here, unverified; -1: there is none.

    Of the local tier that is what some process finished, not what all agree on.
    """
    durable = [step for step in saved_steps(directory) if is_finished(directory / str(step))]
    return max(*durable, -1, newest_seen(directory / LOCAL))


class TieredCheckpoints:
    """Both tiers as one; used like a `CheckpointManager`, by all processes at the same time."""

    def __init__(self, directory: Path, config: CheckpointConfig) -> None:
        """Changes nothing on disk.

        Raises:
          CheckpointError: when a folder cannot be made or written to.
        """
        self._directory, self._config, self._link = directory, config, directory / LOCAL
        self._durable = CheckpointManager(directory, config)
        if config.local_directory:  # refuse a bad one now rather than at the first save
            check_writable(Path(config.local_directory), "checkpoint.local_directory")
        found = str(self._link.readlink()) if self._link.is_symlink() else ""
        # What process 0 sees goes for all, so that they do the same.
        folder = gather_texts(found)[0]
        self._wanted = Path(gather_texts(os.path.abspath(config.local_directory))[0])
        self._local = LocalTier(Path(folder), config) if folder else None
        self._holder: dict[int, CheckpointManager | LocalTier] = {}  # of steps found intact

    def __enter__(self) -> TieredCheckpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find_latest(self, template: Template | None = None) -> Found | None:
        """The newest intact checkpoint of either tier; None when none was ever finished.

        Warns when there are only local checkpoints of which processes lack what they need.

        Args:
          template: gives the state that is to be read; None: one that every process holds whole.

        Raises:
          CheckpointError: when there are finished checkpoints and all are damaged.
        """
        local = LocalFound(None) if self._local is None else self._local.find_latest(template)
        passed_over = list(local.passed_over)
        newest = -1 if local.step is None else local.step
        durable = None
        if max(saved_steps(self._directory), default=-1) > newest:  # else it need not be read
            try:
                durable = self._durable.find_latest()
            except CheckpointError as error:
                if local.step is None:
                    raise
                passed_over.append((newest + 1, str(error)))
        if durable is not None and durable.step > newest:
            self._holder[durable.step] = self._durable
            lines = [line for step, line in passed_over if step > durable.step]
            return Found(durable.step, [*lines, *durable.passed_over])
        if local.step is not None:
            assert self._local is not None
            self._holder[local.step] = self._local
            lines = [line for step, line in passed_over if step > local.step]
            return Found(local.step, lines)
        self._report_useless(local)
        return None

    def _report_useless(self, local: LocalFound) -> None:
        """There are no durable checkpoints, and the local ones cannot be used."""
        if not local.passed_over:
            return
        listed = "; ".join(line for _, line in local.passed_over)
        if local.is_damaged:
            raise CheckpointError(
                f"no usable checkpoint in {self._directory}: {listed}. Put back a copy of one, or "
                "start again in an empty --workdir"
            )
        if is_first_process():
            warnings.warn(f"{listed}; there is no durable checkpoint yet", stacklevel=3)

    def set_aside_after(self, step: int) -> None:
        """Renames newer checkpoints of both tiers, out of the run's way."""
        for tier in self._tiers():
            tier.set_aside_after(step)

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
        holder = self._durable if tier is Tier.DURABLE else self._local_for_saving()
        holder.save(step, variables=variables, training=training, data=data, metadata=metadata)
        self._holder[step] = holder

    def wait(self) -> None:
        """Blocks until what is being written is durable."""
        for tier in self._tiers():
            tier.wait()

    def close(self) -> None:
        """Waits, then lets go of all threads."""
        for tier in self._tiers():
            tier.close()

    def _tiers(self) -> list[CheckpointManager | LocalTier]:
        return [self._durable, *([] if self._local is None else [self._local])]

    def _local_for_saving(self) -> LocalTier:
        """The tier in `checkpoint.local_directory`; a new folder there if the run has another."""
        if self._local is not None and self._local.folder.parent == self._wanted:
            return self._local
        if self._local is not None:
            self._local.close()
        folder = self._wanted / gather_texts(uuid.uuid4().hex)[0]
        if is_first_process():
            self._link.parent.mkdir(parents=True, exist_ok=True)
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(folder, target_is_directory=True)
        self._local = LocalTier(folder, self._config)
        return self._local
