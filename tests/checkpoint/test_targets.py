"""Where a conversion may write is decided before it begins, and nothing of anybody is touched."""

from __future__ import annotations

import os
import resource
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.checkpoint.hub_folders import TINY, new_keys, random_tensors, write_folder
from zaya_jax.checkpoint import convert as convert_module
from zaya_jax.checkpoint import verify
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.checkpoint.skip_bias import SkipBias
from zaya_jax.checkpoint.unfinished import check_target, finished_folder


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture(scope="module")
def make_source() -> Callable[[Path], Path]:
    tensors = random_tensors("transformers", TINY)
    return lambda folder: write_folder(folder, new_keys(), tensors)


def everything(folder: Path) -> dict[str, object]:
    """What lies below a folder: links by where they lead, files by content."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def link(to: str, name: str = "out") -> Callable[[Path], object]:
    return lambda place: (place / name).symlink_to(to)


def folder_with_a_file(name: str) -> Callable[[Path], object]:
    def make(place: Path) -> None:
        (place / name).mkdir()
        (place / name / "precious").write_text("x")

    return make


def linked_folder(place: Path) -> None:
    folder_with_a_file("mine")(place)
    (place / "out.unfinished").symlink_to("mine")


# What is there, the target, message
REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "unfinished is a link": (linked_folder, "out", "out.unfinished is in the way"),
    "unfinished is a user's": (
        folder_with_a_file("out.unfinished"),
        "out",
        "out.unfinished is in the way and was not left by a conversion",
    ),
    "unfinished is a file": (
        lambda place: (place / "out.unfinished").write_text("x"),
        "out",
        "is in the way",
    ),
    "a name of unfinished work": (lambda place: None, "x.unfinished", "choose another"),
    "a link nowhere": (link("gone"), "out", "out is a link"),
    "a link to itself": (link("out"), "out", "out is a link"),
    "a link to an empty folder": (
        lambda place: ((place / "empty").mkdir(), link("empty")(place)),
        "out",
        "out is a link",
    ),
    "below a link to itself": (link("loop", "loop"), "loop/out", "loop"),
    "below a file": (lambda place: (place / "f").write_text(""), "f/out", "is no folder that"),
    "no name": (lambda place: None, "new/..", "names no new folder"),
    "inside the source": (lambda place: None, "source/checkpoints", "lies inside"),
    "inside the source by a link": (
        link("source", "door"),
        "door/new",
        "lies inside",
    ),
    "NUL": (lambda place: None, "a\0b/c", "cannot be made"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_target_is_refused_before_anything_is_written(
    name: str, make_source: Callable[[Path], Path], tmp_path: Path
):
    prepare, target, message = REFUSED[name]
    source = make_source(tmp_path / "source")
    prepare(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(CheckpointError, match=message) as error:
        convert(source, f"{tmp_path}/{target}")
    assert "\n" not in str(error.value)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("words", [["", "new"], ["source", ""]])
def test_an_empty_name_is_no_folder(words: list[str], capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        convert_module.main(words)
    assert "'' names no folder" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="'' names no new folder"):
        check_target("")


def test_remains_are_cleared_away_and_links_in_them_not_followed(tmp_path: Path):
    folder_with_a_file("mine")(tmp_path)
    with finished_folder(tmp_path / "other", 0) as folder:
        shutil.copytree(folder, tmp_path / "out.unfinished")  # as a killed process would leave it
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "out.unfinished" / "half").write_text("")
    (tmp_path / "out.unfinished" / "door").symlink_to(tmp_path / "mine")
    with finished_folder(tmp_path / "out", 0) as folder:
        (folder / "whole").write_text("")
    assert everything(tmp_path) == {
        "mine": None,
        "mine/precious": b"x",
        "out": None,
        "out/whole": b"",
    }


@pytest.mark.parametrize("ends_well", [True, False])
def test_new_folders_above_stay_only_with_the_target(ends_well: bool, tmp_path: Path):
    def write() -> None:
        with finished_folder(tmp_path / "a" / "b" / "out", 0):
            if not ends_well:
                raise OSError(27, "File too large")

    if ends_well:
        write()
    else:
        with pytest.raises(CheckpointError, match="out cannot be written: File too large; make"):
            write()
    assert (tmp_path / "a" / "b" / "out").is_dir() is ends_well
    assert (tmp_path / "a").exists() is ends_well


def test_an_empty_folder_may_become_the_target(tmp_path: Path):
    (tmp_path / "out").mkdir()
    with finished_folder(tmp_path / "out", 0) as folder:
        (folder / "whole").write_text("")
    assert everything(tmp_path) == {"out": None, "out/whole": b""}


@pytest.fixture
def few_open_files() -> Iterator[None]:
    """The system allows 24 files more than are open now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = len(os.listdir("/proc/self/fd")) + 24
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_open_files")
def test_many_shards_need_few_open_files(make_source: Callable[[Path], Path], tmp_path: Path):
    source, sharded = make_source(tmp_path / "source"), tmp_path / "sharded"
    convert(source, sharded, layout="zyphra", max_shard_bytes=1)
    assert len(list(sharded.glob("*.safetensors"))) > 150
    convert(sharded, tmp_path / "orbax")
    assert verify.compare(open_checkpoint(sharded), open_checkpoint(tmp_path / "orbax")).equal


@pytest.mark.parametrize("layout", ["orbax", "zyphra"])
def test_a_shift_of_biases_is_only_for_transformers(
    layout: str, make_source: Callable[[Path], Path], tmp_path: Path
):
    source = make_source(tmp_path / "source")
    with pytest.raises(CheckpointError, match=f"for the layout transformers, not for {layout}"):
        convert(source, tmp_path / "out", layout=layout, skip_bias=SkipBias.SHIFT)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("extra", ["checkpoints", "2025"])
def test_folders_beside_the_weights_do_not_matter(
    extra: str, make_source: Callable[[Path], Path], tmp_path: Path
):
    source = make_source(tmp_path / "source")
    (source / extra).mkdir()
    assert convert(source, tmp_path / "out").source_layout == "transformers"


def test_what_a_broken_off_clean_up_leaves_can_be_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The mark is the last thing to go."""
    target = tmp_path / "out"

    def stubborn(path: Path) -> None:
        raise KeyboardInterrupt

    def fail() -> None:
        with finished_folder(target, 0) as folder:
            (folder / "a").write_text("half")
            monkeypatch.setattr(Path, "unlink", stubborn)
            raise OSError

    with pytest.raises(KeyboardInterrupt):
        fail()
    monkeypatch.undo()
    with finished_folder(target, 0) as folder:
        assert not (folder / "a").exists()
    assert target.is_dir()


def test_room_is_measured_after_remains_are_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    remains = tmp_path / "out.unfinished"
    remains.mkdir()
    (remains / "manifest.json.unfinished").touch()
    (remains / "large").write_text("x")

    def usage(path: Path) -> types.SimpleNamespace:
        return types.SimpleNamespace(free=0 if (remains / "large").exists() else 10)

    monkeypatch.setattr("shutil.disk_usage", usage)
    with finished_folder(tmp_path / "out", 5):
        pass
    with pytest.raises(CheckpointError, match="make room"), finished_folder(tmp_path / "two", 11):
        pass
