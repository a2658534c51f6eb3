"""Metrics files tell one story across resumes, stay valid JSON, and reach every writer."""

from __future__ import annotations

import io
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from zaya_jax.config import ConfigError
from zaya_jax.training import writers as writers_module
from zaya_jax.training.metrics_file import JsonlWriter, MetricsError, plain_record, read_metrics
from zaya_jax.training.progress import BarWriter, LineWriter, terminal_writer
from zaya_jax.training.writers import (
    MultiWriter,
    TensorBoardWriter,
    WandbMode,
    WriterConfig,
    open_writers,
    scalars,
)

QUIET = WriterConfig(terminal=False, tensorboard=False)


def train(step: int, loss: Any = 2.0, **more: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "time": 100.0 + step, "loss": loss, **more}


def validation(step: int, loss: float = 3.0) -> dict[str, Any]:
    record = {"kind": "validation", "step": step, "time": 100.0 + step, "source": "prose"}
    return record | {"loss": loss, "accuracy": 0.25, "tokens": 64}


def event(step: int, name: str, detail: str = "") -> dict[str, Any]:
    return {"kind": "event", "step": step, "time": 100.0 + step, "name": name, "detail": detail}


def write_run(workdir: Path, records: list[dict[str, Any]], resume_step: int | None = None) -> None:
    with open_writers(workdir, QUIET, total_steps=10, resume_step=resume_step) as writers:
        for record in records:
            writers.write(record)


def test_resuming_drops_the_steps_of_the_interrupted_run(tmp_path: Path) -> None:
    write_run(tmp_path, [train(1, 5.0), train(2, 4.0), validation(2), train(3, 9.0), train(4, 9.0)])
    write_run(tmp_path, [event(2, "resume"), train(3, 3.0)], resume_step=2)
    story = [(record["kind"], record["step"]) for record in read_metrics(tmp_path)]
    assert story == [("train", 1), ("train", 2), ("validation", 2), ("event", 2), ("train", 3)]
    assert [r["loss"] for r in read_metrics(tmp_path) if r["kind"] == "train"] == [5.0, 4.0, 3.0]


def test_a_fresh_start_forgets_the_records_of_an_earlier_run(tmp_path: Path) -> None:
    write_run(tmp_path, [train(1), train(2)])
    write_run(tmp_path, [train(1, 7.0)], resume_step=None)
    assert [(r["step"], r["loss"]) for r in read_metrics(tmp_path)] == [(1, 7.0)]


def test_a_torn_last_line_is_dropped_and_overwritten_on_resume(tmp_path: Path) -> None:
    write_run(tmp_path, [train(1), train(2)])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"train","step":3,"lo')
    assert [r["step"] for r in read_metrics(tmp_path)] == [1, 2]
    write_run(tmp_path, [train(3)], resume_step=2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize("damage", [b"\x00\xff garbage\n", b"[1, 2]\n", b'{"kind": "train"}\n'])
def test_damage_before_the_last_line_is_refused_with_its_place(
    tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    write_run(tmp_path, [train(1), train(2)])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + second)
    before = path.read_bytes()
    with pytest.raises(MetricsError, match=r"metrics\.jsonl, line 2"):
        read_metrics(tmp_path)
    with pytest.raises(MetricsError, match="line 2"):
        JsonlWriter(tmp_path, resume_step=2)
    assert path.read_bytes() == before


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MetricsError, match="does not exist"):
        read_metrics(tmp_path)
    write_run(tmp_path, [])
    with pytest.raises(MetricsError, match="holds no records"):
        read_metrics(tmp_path)


def test_non_finite_numbers_stay_valid_json_and_come_back(tmp_path: Path) -> None:
    write_run(tmp_path, [train(1, math.nan, grad_norm=math.inf, load_entropy=[0.5, -math.inf])])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "metrics.jsonl").read_text()
    json.loads(text, parse_constant=refuse)
    (record,) = read_metrics(tmp_path)
    assert math.isnan(record["loss"])
    assert record["grad_norm"] == math.inf
    assert record["load_entropy"] == [0.5, -math.inf]


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    write_run(tmp_path, [event(1, "NaN", "Infinity")])
    (record,) = read_metrics(tmp_path)
    assert (record["name"], record["detail"]) == ("NaN", "Infinity")


def test_a_step_validated_twice_counts_once_with_its_last_value(tmp_path: Path) -> None:
    write_run(tmp_path, [validation(2, 3.0), event(2, "a"), event(2, "b"), validation(2, 2.5)])
    records = read_metrics(tmp_path)
    assert [r["loss"] for r in records if r["kind"] == "validation"] == [2.5]
    assert [r["name"] for r in records if r["kind"] == "event"] == ["a", "b"]


def test_arrays_become_plain_numbers() -> None:
    record = plain_record(
        train(
            step=np.int64(3),
            loss=np.float32(0.5),
            tokens=jnp.int32(8),
            load_entropy=jnp.array([0.25, 1.0], jnp.bfloat16),
            mfu=None,
        )
    )
    assert record["step"] == 3
    assert type(record["step"]) is int
    assert record["loss"] == 0.5
    assert record["tokens"] == 8
    assert record["load_entropy"] == [0.25, 1.0]
    assert record["mfu"] is None
    json.dumps(record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"kind": "trian", "step": 1, "time": 0.0}, "kind='trian'"),
        ({"kind": "train", "time": 0.0}, "step"),
        ({"kind": "train", "step": 1}, "time"),
        (train(1, loss={"a": 1}), "metric loss is a dict"),
    ],
)
def test_a_wrong_record_is_refused(record: dict[str, Any], message: str) -> None:
    with pytest.raises(MetricsError, match=message):
        plain_record(record)


def read_events(folder: Path) -> list[Event]:
    events = []
    for path in sorted(folder.glob("events.*")):
        data = path.read_bytes()
        while data:  # length, checksum, message, checksum
            (length,) = struct.unpack("<Q", data[:8])
            event = Event()
            event.ParseFromString(data[12 : 12 + length])
            events.append(event)
            data = data[12 + length + 4 :]
    return events


def shown_points(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Points as TensorBoard shows them: a session's start hides earlier points from its step on."""
    points: list[tuple[int, float]] = []
    for event in read_events(folder):
        if event.session_log.status == SessionLog.START:
            points = [point for point in points if point[0] < event.step]
        points += [(event.step, v.simple_value) for v in event.summary.value if v.tag == tag]
    return points


def test_tensorboard_shows_every_step_once_after_a_resume(tmp_path: Path) -> None:
    config = WriterConfig(terminal=False)
    for records, resume_step in (
        ([train(1, 5.0), train(2, 4.0), train(3, 9.0)], None),
        ([train(3, 3.0), validation(3)], 2),
    ):
        with open_writers(tmp_path, config, 10, resume_step) as writers:
            for record in records:
                writers.write(record)
    folder = tmp_path / "tensorboard"
    assert shown_points(folder, "train/loss") == [(1, 5.0), (2, 4.0), (3, 3.0)]
    assert shown_points(folder, "validation/prose/accuracy") == [(3, 0.25)]


def test_vectors_become_a_scalar_per_layer() -> None:
    tags = scalars(train(1, load_entropy=[0.5, 0.75], residual_rms=[1.0, 2.0, 3.0], mfu=None))
    assert tags == {
        "train/loss": 2.0,
        "load_entropy/layer_00": 0.5,
        "load_entropy/layer_01": 0.75,
        "residual_rms/depth_00": 1.0,
        "residual_rms/depth_01": 2.0,
        "residual_rms/depth_02": 3.0,
    }


def test_an_event_reaches_the_file_before_the_writers_close(tmp_path: Path) -> None:
    writers = open_writers(tmp_path, WriterConfig(terminal=False), total_steps=10)
    writers.write(train(1))
    writers.write(event(1, "sigterm"))
    assert [r["kind"] for r in read_metrics(tmp_path)] == ["train", "event"]
    assert shown_points(tmp_path / "tensorboard", "train/loss") == [(1, 2.0)]
    writers.close()


def test_a_writer_that_cannot_close_does_not_keep_the_others_open() -> None:
    class Broken:
        def write(self, record: Any) -> None:
            raise OSError("disk full")

        def flush(self) -> None:
            raise OSError("disk full")

        def close(self) -> None:
            raise OSError("disk full")

    closed: list[str] = []

    class Fine:
        def write(self, record: Any) -> None:
            pass

        def flush(self) -> None:
            pass

        def close(self) -> None:
            closed.append("fine")

    for order in ([Broken(), Fine()], [Fine(), Broken()]):
        with pytest.raises(OSError, match="disk full"), MultiWriter(order) as writers:
            writers.write(train(1))
    assert closed == ["fine", "fine"]


def test_plain_lines_come_every_few_steps_and_for_every_validation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer = terminal_writer(total_steps=20, resume_step=0, plain_every=10)
    assert isinstance(writer, LineWriter)
    for step in range(1, 21):
        writer.write(train(step, 9.0 - step / 4, tokens_per_second=12_345.6, accuracy=0.125))
    writer.write(validation(20))
    writer.write(event(20, "checkpoint"))
    writer.write(event(20, "sigterm", "saved step 20"))
    first, tenth, last, valid, sigterm = capsys.readouterr().out.splitlines()
    assert first == "step  1/20  loss 8.750  accuracy 12.5%  12,346 tokens/s"
    assert tenth == "step 10/20  loss 6.500  accuracy 12.5%  12,346 tokens/s  0:10 left"
    assert last.startswith("step 20/20")
    assert valid == "step 20: validation on prose: loss 3.000, 25.0% of tokens right"
    assert sigterm == "step 20: sigterm saved step 20"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_loss_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    stream = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", stream)
    writer = terminal_writer(total_steps=20, resume_step=5, plain_every=10)
    assert isinstance(writer, BarWriter)
    writer.write(train(6, 4.25, tokens_per_second=1_000.0))
    writer.write(validation(6))
    writer.flush()
    writer.close()
    text = stream.getvalue()
    assert "6/20" in text
    assert "4.250" in text
    assert "1,000 tokens/s" in text
    assert "validation on prose" in text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"plain_every": 0}, "log.plain_every=0"),
        ({"wandb": "on"}, "log.wandb='on' must be one of: disabled, offline, online"),
        ({"wandb_project": ""}, "log.wandb_project=''"),
    ],
)
def test_a_wrong_setting_names_field_and_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WriterConfig(**fields)


def test_wandb_without_its_library_names_the_extra_and_leaves_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, [train(1)])
    monkeypatch.setattr(writers_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"zaya_jax\[wandb\]"):
        open_writers(tmp_path, WriterConfig(wandb=WandbMode.OFFLINE), total_steps=10)
    assert len(read_metrics(tmp_path)) == 1


def test_wandb_is_told_every_number_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, float]] = []

    class FakeRun:
        def define_metric(self, name: str, step_metric: str | None = None) -> None:
            pass

        def log(self, values: dict[str, float]) -> None:
            logged.append(values)

        def finish(self) -> None:
            logged.append({"finished": 1.0})

    class FakeWandb:
        @staticmethod
        def init(mode: str, **_: Any) -> FakeRun:
            assert mode == "offline"
            return FakeRun()

    monkeypatch.setattr(writers_module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(writers_module.importlib, "import_module", lambda name: FakeWandb)
    config = WriterConfig(terminal=False, tensorboard=False, wandb=WandbMode.OFFLINE)
    with open_writers(tmp_path, config, total_steps=10) as writers:
        writers.write(train(1))
        writers.write(event(1, "resume"))
    assert logged == [{"step": 1, "train/loss": 2.0}, {"finished": 1.0}]


def test_a_full_disk_under_tensorboard_is_an_error_and_never_a_hang(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, resume_step=None)
    # /dev/full answers every write as a full disk does.
    with open("/dev/full", "wb", buffering=0) as full:
        writer._events._py_recordio_writer._writer = full
        with pytest.raises(OSError, match="No space left"):
            writer.write({"kind": "train", "step": 1, "time": 0.0, "loss": 1.0})
