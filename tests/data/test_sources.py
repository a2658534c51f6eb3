"""Sources read the same documents everywhere, split them by content, and fail readably."""

from __future__ import annotations

import os
import shutil

import pytest

from zaya_jax.data import DataConfig, DataError
from zaya_jax.data.sources import documents_fingerprint, read_source
from zaya_jax.data.standard_library import read_standard_library
from zaya_jax.data.text_files import read_folder, read_sections


def write_files(folder, names, text="text of {name}\n"):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(name=name), encoding="utf-8")


def test_order_depends_on_neither_file_system_nor_place(tmp_path, monkeypatch):
    names = [f"part{i % 3}/file{i}.txt" for i in range(12)]
    write_files(tmp_path / "here", names)
    write_files(tmp_path / "elsewhere", reversed(names))
    first = read_folder(tmp_path / "here", None)
    real_walk = os.walk

    def reversed_walk(root):
        for folder, folders, files in real_walk(root):
            folders.reverse()
            yield folder, folders, files[::-1]

    monkeypatch.setattr(os, "walk", reversed_walk)
    assert read_folder(tmp_path / "elsewhere", None) == first
    assert [document.name for document in first.documents] != sorted(names)


def test_unusable_files_are_counted_and_repeats_dropped(tmp_path):
    write_files(tmp_path, ["a.txt", "b.txt"])
    shutil.copy(tmp_path / "a.txt", tmp_path / "copy of a.txt")
    (tmp_path / "latin1.txt").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "binary.txt").write_bytes(b"x\0y")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    write_files(tmp_path, [".hidden.txt", ".git/object.txt"])
    result = read_folder(tmp_path, None)
    assert sorted(document.text for document in result.documents) == [
        "text of a.txt\n",
        "text of b.txt\n",
    ]
    assert result.skipped == 4


def test_max_bytes_stops_with_the_file_that_reaches_it(tmp_path):
    write_files(tmp_path, [f"{i:02d}.txt" for i in range(20)], "{name}xxxx")  # 10 bytes each
    assert len(read_folder(tmp_path, 50).documents) == 5
    assert len(read_folder(tmp_path, 51).documents) == 6
    whole = read_folder(tmp_path, None).documents
    assert read_folder(tmp_path, 50).documents == whole[:5]


def test_single_file_becomes_sections_that_hold_all_of_it(tmp_path):
    path = tmp_path / "book.txt"
    text = "".join(f"line {i} of the book, ünïcode\r\n" for i in range(2_000))
    path.write_text(text, encoding="utf-8", newline="")
    result = read_sections(path, None)
    assert "".join(document.text for document in result.documents) == text
    assert len(result.documents) >= 2_000 * 30 // 8_192


def test_cut_single_file_ends_at_a_line_and_not_inside_a_character(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("ä" * 5 + "\n" + "ö" * 50, encoding="utf-8")
    result = read_sections(path, 20)  # byte 20 lies inside a two-byte character
    assert "".join(document.text for document in result.documents) == "ä" * 5 + "\n"


def test_split_is_disjoint_and_does_not_move_a_text_when_others_come(tmp_path):
    write_files(tmp_path, [f"{i}.txt" for i in range(300)])
    config = DataConfig(source=str(tmp_path), validation_fraction=0.2, max_bytes=None)
    before = read_source(config)
    write_files(tmp_path, [f"more/{i}.txt" for i in range(300)])
    after = read_source(config)
    for part in (before, after):
        texts = {document.text for document in part.train}
        assert not texts & {document.text for document in part.validation}
        assert 0.1 < len(part.validation) / (len(part.train) + len(part.validation)) < 0.3
    assert set(before.validation) <= set(after.validation)
    assert set(before.train) <= set(after.train)


def test_two_documents_are_enough_for_both_parts(tmp_path):
    write_files(tmp_path, ["a.txt", "b.txt"])
    text = read_source(DataConfig(source=str(tmp_path), validation_fraction=0.01))
    assert (len(text.train), len(text.validation)) == (1, 1)


def test_empty_folder_names_source_and_mend(tmp_path):
    (tmp_path / "latin1.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"holds no text; 1 files were .*Set source to"):
        read_source(DataConfig(source=str(tmp_path)))


def test_single_document_names_source_and_mend(tmp_path):
    write_files(tmp_path, ["a.txt"])
    with pytest.raises(DataError, match="too few to hold some out"):
        read_source(DataConfig(source=str(tmp_path)))


def test_unknown_source_lists_the_known(tmp_path):
    with pytest.raises(DataError, match=r"'python_stdlb' is neither one of python_stdlib"):
        read_source(DataConfig(source="python_stdlb"))


def test_standard_library_is_real_text_without_installed_packages():
    result = read_standard_library(400_000)
    assert sum(len(document.text) for document in result.documents) >= 390_000
    assert not any("site-packages" in document.name for document in result.documents)
    assert {os.path.splitext(document.name)[1] for document in result.documents} >= {".py"}


def test_missing_standard_library_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere/python311.zip")
    with pytest.raises(DataError, match=r"python311\.zip is not a folder.*Set source"):
        read_standard_library(None)


def test_synthetic_source_is_the_same_every_time():
    first, second = (read_source(DataConfig(source="synthetic")) for _ in range(2))
    assert documents_fingerprint(first.train) == documents_fingerprint(second.train)
    # Known value: the text must not change between machines or Python versions.
    assert documents_fingerprint(first.train).startswith(SYNTHETIC_FINGERPRINT)


SYNTHETIC_FINGERPRINT = "443ca4988c706bd4"
