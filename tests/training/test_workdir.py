"""A folder belongs to one run at a time, and to none when that run is dead."""

from __future__ import annotations

import argparse
import errno
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zaya_jax.config import ConfigError
from zaya_jax.training.workdir import LOCK_FILE, check_free, claimed, folder_option, make_workdir

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


@pytest.mark.parametrize(
    ("below", "reason"),
    [("", "is a file, or a link that leads nowhere"), ("run", "cannot be written to: Not a dir.*")],
)
def test_a_folder_that_cannot_be_made_is_named_with_its_option(
    tmp_path: Path, below: str, reason: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    message = rf"--workdir='{file / below}' {reason}; give a folder"
    with pytest.raises(ConfigError, match=message):
        make_workdir(file / below)
    with pytest.raises(ConfigError, match=message), claimed(file / below):
        pytest.fail("no folder")


def test_an_empty_option_is_no_folder() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is empty; give a folder"):
        folder_option("")
    assert folder_option("runs/a b") == Path("runs/a b")


def test_a_link_that_leads_nowhere_is_told_apart_from_a_folder(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"link' is a file, or a link that leads nowhere"):
        make_workdir(link)


def test_a_name_that_is_too_long_is_named(tmp_path: Path) -> None:
    message = r"^--workdir='.*aaa' cannot be written to: File name too long; give a folder"
    with pytest.raises(ConfigError, match=message), claimed(tmp_path / ("a" * 300)):
        pass


def test_something_else_in_the_place_of_the_lock_is_named(workdir: Path) -> None:
    (workdir / LOCK_FILE).mkdir(parents=True)
    message = r"one/lock cannot be opened: Is a directory; it marks"
    with pytest.raises(ConfigError, match=message), claimed(workdir):
        pass


def test_a_folder_is_checked_without_claiming_it(
    workdir: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(ConfigError, match="is in use by process 4711"):
        check_free(workdir)
    holder.kill()
    holder.wait()
    check_free(workdir)
    with claimed(workdir, "watch"), claimed(workdir):
        pass
