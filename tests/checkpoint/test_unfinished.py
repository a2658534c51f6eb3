"""A conversion is there whole or not at all, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.hub_folders import (
    TINY,
    assert_same_bytes,
    new_keys,
    random_tensors,
    read_folder,
    v2_keys,
    write_folder,
)
from zaya_jax.checkpoint import convert as convert_module
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.manager import CheckpointError


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)


def test_an_existing_target_is_left_alone(tmp_path: Path):
    source = write_folder(tmp_path / "source", new_keys(), random_tensors("transformers", TINY))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "precious").write_text("")
    with pytest.raises(CheckpointError, match="target exists already"):
        convert(source, tmp_path / "target")
    with pytest.raises(CheckpointError, match="source exists already"):
        convert(source, source)
    assert (tmp_path / "target" / "precious").exists()


def test_too_little_room_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_folder(tmp_path / "source", new_keys(), random_tensors("transformers", TINY))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 100_000})())
    with pytest.raises(CheckpointError, match=r"target needs 0\.00 GB, its disk has 0\.00 GB free"):
        convert(source, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


KILL = """
import os, signal, sys
from zaya_jax.checkpoint import convert, copying, orbax_writer, progress
copying.BLOCK_BYTES = orbax_writer.BLOCK_BYTES = 5000
copying._THREADS = 1
blocks = iter(range(30))
def advance(self, count):
    if next(blocks, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
progress.Progress.advance = advance
convert.convert(sys.argv[1], sys.argv[2], layout=sys.argv[3])
"""


@pytest.mark.parametrize("layout", ["orbax", pytest.param("transformers", marks=pytest.mark.slow)])
def test_a_killed_conversion_leaves_nothing_that_looks_finished(layout: str, tmp_path: Path):
    tensors = random_tensors("zyphra", TINY)
    source = write_folder(tmp_path / "source", v2_keys(), tensors)
    target = tmp_path / "target"
    command = [sys.executable, "-c", KILL, str(source), str(target), layout]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = tmp_path / "target.unfinished"
    assert left.is_dir()
    assert sum(path.stat().st_size for path in left.rglob("*") if path.is_file()) > 50_000
    assert not target.exists()
    for path in (target, left):
        with pytest.raises(CheckpointError, match=r"no folder|broken off"):
            load_checkpoint(path)
    os.rename(left, tmp_path / "renamed")  # even under another name it is no checkpoint
    with pytest.raises(CheckpointError, match=r"not completely written|is missing"):
        load_checkpoint(tmp_path / "renamed")
    os.rename(tmp_path / "renamed", left)

    convert(source, target, layout=layout)
    convert(target, tmp_path / "back", layout="zyphra")
    assert_same_bytes(read_folder(tmp_path / "back"), tensors)
    assert not left.exists()


def test_a_failing_conversion_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_folder(tmp_path / "source", new_keys(), random_tensors("transformers", TINY))

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zaya_jax.checkpoint.orbax_writer._write_new", fail)
    with pytest.raises(
        CheckpointError, match=r"target cannot be written: No space left.*make room"
    ):
        convert(source, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_two_conversions_do_not_write_the_same_folder(tmp_path: Path):
    source = write_folder(tmp_path / "source", new_keys(), random_tensors("transformers", TINY))
    with (
        convert_module.finished_folder(tmp_path / "target", 0),
        pytest.raises(CheckpointError, match="another process is writing"),
    ):
        convert(source, tmp_path / "target")
