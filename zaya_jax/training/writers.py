"""Where metrics go: ``metrics.jsonl`` always, TensorBoard, the terminal, and Weights & Biases.

with open_writers(workdir, WriterConfig(), total_steps=600, resume_step=None) as writers:
    writers.write({"kind": "train", "step": 1, "time": time.time(), "loss": 9.1, ...})
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar, text

from zaya_jax.config import ConfigError
from zaya_jax.parallel.hosts import is_first_process
from zaya_jax.training.metrics_file import JsonlWriter, plain_record
from zaya_jax.training.progress import terminal_writer


class WandbMode(enum.StrEnum):
    """Whether Weights & Biases records the run."""

    DISABLED = "disabled"  # the library is not even imported
    OFFLINE = "offline"  # into workdir/wandb, for `wandb sync` later
    ONLINE = "online"  # sent while training; needs a login


@dataclasses.dataclass(frozen=True)
class WriterConfig:
    """Which writers a run has. ``metrics.jsonl`` is always written: the report reads it.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    terminal: bool = True  # a progress bar, or plain lines where stdout is not a terminal
    plain_every: int = 10  # steps between two plain lines
    tensorboard: bool = True  # event files in workdir/tensorboard
    wandb: WandbMode = WandbMode.DISABLED  # needs the extra `wandb`
    wandb_project: str = "zaya_jax"  # project the runs are filed under

    def __post_init__(self) -> None:
        if type(self.plain_every) is not int or self.plain_every < 1:
            raise ConfigError(f"log.plain_every={self.plain_every!r} must be a positive integer")
        if self.wandb not in tuple(WandbMode):
            choices = ", ".join(WandbMode)
            raise ConfigError(f"log.wandb={self.wandb!r} must be one of: {choices}")
        object.__setattr__(self, "wandb", WandbMode(self.wandb))
        if not self.wandb_project:
            raise ConfigError(f"log.wandb_project={self.wandb_project!r} must not be empty")


class Writer(Protocol):
    """Takes the plain records of a run one by one."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Take one record."""

    def flush(self) -> None:
        """Make everything taken so far survive the end of the process."""

    def close(self) -> None:
        """Flush and release what is held."""


class MultiWriter:
    """Hands every record to each of several writers. A context manager that closes them."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = tuple(writers)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record; arrays (NumPy or JAX) become lists. Events are flushed at once.

        Raises:
          MetricsError: when the record lacks kind, step or time, or holds something else than
            numbers, text and arrays.
        """
        plain = plain_record(record)
        for writer in self._writers:
            writer.write(plain)
        if plain["kind"] == "event":
            self.flush()

    def flush(self) -> None:
        """Make everything written so far survive the end of the process."""
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        """Close every writer, also when closing one of them fails."""
        with contextlib.ExitStack() as stack:
            for writer in self._writers:
                stack.callback(writer.close)

    def __enter__(self) -> MultiWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_writers(
    workdir: Path | str, config: WriterConfig, total_steps: int, resume_step: int | None = None
) -> MultiWriter:
    """The writers of a run in `workdir`, which is created if need be; none but in process 0.

    Args:
      workdir: folder of the run.
      config: which writers to open.
      total_steps: the last step of the run, for the progress bar.
      resume_step: the step training continues from: what was recorded of later steps is dropped.
        None for a run that starts anew.

    Raises:
      ConfigError: when Weights & Biases is asked for and not installed.
      MetricsError: when an existing metrics.jsonl is damaged.
      OSError: when the folder cannot be written.
    """
    if not is_first_process():
        return MultiWriter(())
    folder = Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    wandb = None if config.wandb is WandbMode.DISABLED else WandbWriter(folder, config)
    writers: list[Writer] = [JsonlWriter(folder, resume_step)]
    if config.tensorboard:
        writers.append(TensorBoardWriter(folder / "tensorboard", resume_step))
    if wandb is not None:
        writers.append(wandb)
    if config.terminal:
        writers.append(terminal_writer(total_steps, resume_step or 0, config.plain_every))
    return MultiWriter(writers)


class TensorBoardWriter:
    """Event files for TensorBoard: scalars, and a scalar per entry of a vector.

    After a resume TensorBoard hides the points of later steps that an interrupted run left.
    """

    def __init__(self, folder: Path, resume_step: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        first_step = 0 if resume_step is None else resume_step + 1
        # Written by this thread, so that a full disk is an error here; the library's usual writer
        # has a thread whose death would block the run for ever.
        self._events = EventsWriter(
            str(folder / "events"),
            filename_suffix=f".from_step_{first_step}",  # never the file of a run a moment ago
        )
        start = SessionLog(status=SessionLog.START)
        self._events.write_event(
            Event(step=first_step, wall_time=time.time(), file_version="brain.Event:2")
        )
        self._events.write_event(Event(step=first_step, wall_time=time.time(), session_log=start))

    def write(self, record: Mapping[str, Any]) -> None:
        """Add every number of the record; an event becomes a text."""
        summaries = [scalar(tag, value) for tag, value in scalars(record).items()]
        if record["kind"] == "event":
            summaries.append(text(f"event/{record['name']}", str(record.get("detail", ""))))
        for summary in summaries:
            event = Event(step=record["step"], wall_time=record["time"], summary=summary)
            self._events.write_event(event)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._events.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._events.close()


class WandbWriter:
    """A Weights & Biases run in workdir/wandb. A resumed job is a run of its own there."""

    def __init__(self, workdir: Path, config: WriterConfig) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(
                f"log.wandb={config.wandb.value!r} needs the wandb library: "
                "pip install 'zaya_jax[wandb]', or leave wandb disabled"
            )
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(
            project=config.wandb_project,
            name=workdir.resolve().name,
            dir=str(workdir),
            mode=config.wandb.value,
        )
        # Validation and event records share a step with the train record, which wandb's own
        # step counter would refuse.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, record: Mapping[str, Any]) -> None:
        """Log every number of the record."""
        values = scalars(record)
        if values:
            self._run.log({"step": record["step"], **values})

    def flush(self) -> None:
        """Nothing to do: the library's own process keeps the log."""

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by tag: train/loss, validation/SOURCE/loss, load_entropy/layer_03.

    Entry i of residual_rms is the input of layer i, the last one the output of the last layer.
    """
    if record["kind"] == "event":
        return {}
    group = record["kind"]
    if group == "validation":
        group = f"validation/{record['source']}"
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if name in ("step", "time") or value is None or isinstance(value, (str, bool)):
            continue
        if isinstance(value, list):
            place = "depth" if name == "residual_rms" else "layer"
            numbers |= {f"{name}/{place}_{i:02d}": entry for i, entry in enumerate(value)}
        else:
            numbers[f"{group}/{name}"] = value
    return numbers
