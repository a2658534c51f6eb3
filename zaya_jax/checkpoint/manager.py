"""Checkpoints of a run: written in the background, verified before they are trusted.

    DIR/checkpoints/<step>/variables    parameters and balancing biases (Orbax)
                           training     step, optimiser states, random stream (Orbax)
                           data         position in the data stream (JSON)
                           metadata     resolved config, git state, library versions (JSON)
                           manifest.json   checksum of every file, written last

Orbax writes each checkpoint under a temporary name and renames it when it is whole. On top of that
stand the manifest, which shows later damage, and retention that deletes an old checkpoint only
after the new one has its manifest. A private directory belongs to one process alone; there `shards`
says which parts of the arrays it holds (`zaya_jax/checkpoint/local_tier.py`).
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from zaya_jax.checkpoint.disk_errors import check_writable, write_error
from zaya_jax.checkpoint.error import CheckpointError as CheckpointError
from zaya_jax.checkpoint.manifest import MANIFEST, find_damage, is_finished, write_manifest
from zaya_jax.checkpoint.manifest import saved_steps as saved_steps
from zaya_jax.checkpoint.private_orbax import open_private_manager
from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.checkpoint.shards import SHARDS
from zaya_jax.parallel.hosts import wait_for_all

UNUSABLE = "unusable-"  # and the step: name of a checkpoint out of the run's way


class Found(NamedTuple):
    """The newest usable checkpoint of a run, and what was passed over to reach it."""

    step: int
    passed_over: list[str]  # one readable line for each newer checkpoint that cannot be used


class Restored(NamedTuple):
    """The contents of a checkpoint. Trees have the structure of the templates."""

    variables: Any
    training: Any
    data: dict[str, Any]


class CheckpointManager:
    """Writes, lists and reads the checkpoints in one directory.

    Not thread-safe: call it from one thread. Use as a context manager or call `close`.
    """

    def __init__(
        self, directory: Path, config: CheckpointConfig, *, is_private: bool = False
    ) -> None:
        """Changes nothing on disk; the first save makes the directory if it is missing.

        Args:
          directory: where all processes write, or, if it is private, the calling one alone.
          config: when old checkpoints go.
          is_private: every process has a directory of its own, for what it can address.

        Raises:
          CheckpointError: when the directory cannot be made or written to.
        """
        self._option = "checkpoint.local_directory" if is_private else "--workdir"
        check_writable(directory, self._option)
        self._directory = directory
        self._config = config
        self._is_private = is_private
        # Elsewhere one process vouches for the files of all.
        self._keeps_order = is_private or jax.process_index() == 0
        self._orbax: ocp.CheckpointManager | None = None
        self._commit: threading.Thread | None = None
        self._commit_error: Exception | None = None

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def find_latest(self) -> Found | None:
        """The newest intact checkpoint; None when no checkpoint was ever finished here.

        Raises:
          CheckpointError: when there are finished checkpoints and all are damaged.
        """
        passed_over, damaged = [], 0
        for step in reversed(saved_steps(self._directory)):
            path = self._directory / str(step)
            if not is_finished(path):
                passed_over.append(f"step {step} was not completely written")
                continue
            damage = find_damage(path)
            if damage is None:
                return Found(step, passed_over)
            damaged += 1
            passed_over.append(f"step {step} is damaged: {damage}")
        if damaged:
            listed = "; ".join(passed_over)
            raise CheckpointError(
                f"no usable checkpoint in {self._directory}: {listed}. Put back a copy of one, or "
                "start again in an empty --workdir"
            )
        return None

    def set_aside_after(self, step: int) -> None:
        """Renames checkpoints newer than `step` to `unusable-<step>`, out of the run's way.

        In a private directory, on a small disk, those of an earlier time go.
        """
        newer = [found for found in saved_steps(self._directory) if found > step]
        if not self._keeps_order or not newer:
            return
        if self._is_private:
            for old in self._directory.glob(UNUSABLE + "*"):
                shutil.rmtree(old)
        for found in newer:
            target = self._directory / f"{UNUSABLE}{found}"
            shutil.rmtree(target, ignore_errors=True)
            (self._directory / str(found)).rename(target)

    def metadata(self, step: int) -> dict[str, Any]:
        """What was saved about the run besides its state."""
        return read_json(self._directory / str(step), "metadata")

    def restore(self, step: int, variables: Any, training: Any) -> Restored:
        """Reads one checkpoint into the shapes, dtypes and shardings of the templates.

        Raises:
          CheckpointError: when the checkpoint's tensors do not fit the templates.
        """
        path = self._directory / str(step)
        return Restored(
            read_arrays(path, "variables", variables),
            read_arrays(path, "training", training),
            read_json(path, "data"),
        )

    # Writing

    def save(
        self,
        step: int,
        *,
        variables: Any,
        training: Any,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any],
        shards: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts writing a checkpoint; returns when the arrays may be reused.

        `shards` goes into a private directory: which parts of the arrays it holds, as JSON.

        Raises:
          CheckpointError: when this or the previous checkpoint cannot be written. Checkpoints
            finished before are untouched.
        """
        self.wait()
        save_arrays = ocp.args.PyTreeSave if self._is_private else ocp.args.StandardSave
        arrays = {"variables": variables, "training": training}
        records = {"data": data, "metadata": metadata}
        if self._is_private:
            records[SHARDS] = shards or {}
        items = ocp.args.Composite(
            **{name: save_arrays(tree) for name, tree in arrays.items()},
            **{name: ocp.args.JsonSave(dict(record)) for name, record in records.items()},
        )
        try:
            if self._orbax is None:
                self._orbax = self._open_orbax()
            self._orbax.save(step, args=items, force=True)
        except (OSError, ValueError) as error:
            self._abandon_orbax()
            raise write_error(self._directory / str(step), error, self._option) from error
        self._commit = threading.Thread(target=self._finish, args=(step,), name="checkpoint")
        self._commit.start()
        if not self._config.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Blocks until the checkpoint being written is durable.

        Raises:
          CheckpointError: when it cannot be written.
        """
        if self._commit is not None:
            self._commit.join()
            self._commit = None
        if self._commit_error is not None:
            error, self._commit_error = self._commit_error, None
            self._abandon_orbax()
            raise error

    def close(self) -> None:
        """Waits for the checkpoint being written, then lets go of all threads.

        Raises:
          CheckpointError: when that checkpoint cannot be written.
        """
        try:
            self.wait()
        finally:
            if self._orbax is not None:
                orbax, self._orbax = self._orbax, None
                orbax.close()

    def _open_orbax(self) -> ocp.CheckpointManager:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._is_private:
            return open_private_manager(
                self._directory.absolute(),
                asynchronous=self._config.asynchronous,
                arrays=("variables", "training"),
                records=("data", "metadata", SHARDS),
            )
        options = ocp.CheckpointManagerOptions(
            enable_async_checkpointing=self._config.asynchronous,
            cleanup_tmp_directories=True,  # what a killed run left half-written
        )
        return ocp.CheckpointManager(self._directory.absolute(), options=options)

    def _abandon_orbax(self) -> None:
        """After a failure: the next save opens Orbax anew, which clears half-written files away."""
        orbax, self._orbax = self._orbax, None
        # Closing raises the failure once more; it is being reported already.
        with contextlib.suppress(OSError, ValueError):
            if orbax is not None:
                orbax.close()

    def _finish(self, step: int) -> None:
        """Runs beside training: waits for the files, writes the manifest, deletes old steps."""
        path = self._directory / str(step)
        assert self._orbax is not None
        try:
            self._orbax.wait_until_finished()
            if not self._keeps_order:
                return
            write_manifest(path)
            if self._is_private:  # a step goes only when all processes have a newer one
                wait_for_all(f"wrote {path.name}")
            for old in steps_to_delete(saved_steps(self._directory), self._config):
                (self._directory / str(old) / MANIFEST).unlink(missing_ok=True)
                if jax.process_count() == 1:
                    self._orbax.delete(old)
                else:  # Orbax would wait here for the other processes
                    shutil.rmtree(self._directory / str(old))
        except (OSError, ValueError, jax.errors.JaxRuntimeError) as error:
            self._commit_error = write_error(path, error, self._option)


def steps_to_delete(steps: list[int], config: CheckpointConfig) -> list[int]:
    """Which of the ascending `steps` retention gives up."""
    every = config.keep_every
    return [step for step in steps[: -config.keep_last] if every == 0 or step % every != 0]


def read_json(step_directory: Path, item: str) -> dict[str, Any]:
    """A JSON item of a checkpoint."""
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
        return reader.restore((step_directory / item).absolute())


def read_arrays(step_directory: Path, item: str, template: Any) -> Any:
    """An item of arrays; the template's leaves say shape, dtype and, where set, sharding.

    Raises:
      CheckpointError: when the saved arrays do not fit the template.
    """
    path = (step_directory / item).absolute()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def placed(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None) or here
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    with ocp.StandardCheckpointer() as reader:
        try:
            return reader.restore(path, jax.tree.map(placed, template))
        except (OSError, ValueError, KeyError, TypeError) as error:
            first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise CheckpointError(
                f"cannot read {path} into this run's state: {first_line}"
            ) from error
