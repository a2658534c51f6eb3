"""A folder belongs to one run at a time, and to none when that run is dead."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zaya_jax.config import ConfigError
from zaya_jax.training.workdir import LOCK_FILE, claimed, make_workdir

# Another run, as far as a folder knows.
HOLDER = f"""
import fcntl, pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
lock = (folder / {LOCK_FILE!r}).open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("process 4711 on node3", file=lock, flush=True)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one"


@pytest.fixture
def holder(workdir: Path) -> Iterator[subprocess.Popen[str]]:
    workdir.mkdir(parents=True)
    command = [sys.executable, "-S", "-c", HOLDER, str(workdir)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_and_told_whose_the_folder_is(
    workdir: Path, holder: subprocess.Popen[str]
) -> None:
    message = r"--workdir='.*runs/one' is in use by process 4711 on node3; wait until it ends, stop"
    with pytest.raises(ConfigError, match=message), claimed(workdir):
        pytest.fail("two runs in one folder")
    assert (workdir / LOCK_FILE).exists()  # it is the other's


def test_a_killed_run_is_in_nobodys_way(workdir: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert (workdir / LOCK_FILE).exists()
    with claimed(workdir):
        assert (workdir / LOCK_FILE).read_text().startswith("process ")


def test_a_lock_whose_file_was_removed_meanwhile_is_none(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, flock = [], fcntl.flock

    def late(file: object, flags: int) -> None:
        calls.append(flags)
        if len(calls) == 1:  # its holder ends between our opening and our locking
            (workdir / LOCK_FILE).unlink()
        flock(file, flags)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", late)
    with claimed(workdir):
        assert len(calls) == 2
        assert (workdir / LOCK_FILE).exists()


def test_where_files_cannot_be_locked_a_run_says_so_and_goes_on(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claimed(workdir):
        pass
    assert "keeps no locks (No locks available); start no second run" in capsys.readouterr().err


def test_a_refused_run_leaves_nothing_and_one_that_writes_leaves_no_lock(
    workdir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="bad config"), claimed(workdir):
        raise ConfigError("bad config")
    assert list(tmp_path.iterdir()) == []
    with claimed(workdir):
        (workdir / "config.json").write_text("{}")
    assert [path.name for path in workdir.iterdir()] == ["config.json"]


@pytest.mark.parametrize("below", ["", "run"])
def test_a_folder_that_cannot_be_made_is_named_with_its_option(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    message = rf"--workdir='{file / below}' cannot be written to: .*; give a folder that you may"
    with pytest.raises(ConfigError, match=message):
        make_workdir(file / below)
    with pytest.raises(ConfigError, match=message), claimed(file / below):
        pytest.fail("no folder")
