"""Orbax checkpoints whose descriptions were changed, with or without a manifest to match."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.hub_folders import TINY, new_keys, random_tensors, write_folder
from zaya_jax.checkpoint import inspect, verify
from zaya_jax.checkpoint.convert import convert
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint, open_intact
from zaya_jax.config import ConfigError

METADATA, RELEASED = "metadata/metadata", "released/config.json"
NORM = "variables/params.final_norm.weight"
TREE = "variables/_METADATA"
DEEP = b"[" * 200_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("orbax")
    tensors = random_tensors("transformers", TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        convert(write_folder(folder / "source", new_keys(), tensors), folder / "made")
    return folder / "made"


@pytest.fixture
def checkpoint(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkpoint"))


def put(checkpoint: Path, name: str, content: bytes) -> None:
    """Exchanges a file, and its entry of the manifest too."""
    (checkpoint / name).write_bytes(content)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def edit(checkpoint: Path, name: str, change: Callable[[dict], Any]) -> None:
    value = json.loads((checkpoint / name).read_text())
    change(value)
    put(checkpoint, name, json.dumps(value).encode())


def model(**fields: Any) -> Callable[[dict], Any]:
    return lambda metadata: metadata["config"]["model"].update(fields)


@pytest.mark.parametrize("name", [METADATA, RELEASED, TREE, f"{NORM}/.zarray"])
@pytest.mark.parametrize("content", [b"{x", b"[]", DEEP, b'{"a": 1, "a": 1}', b"{}"])
def test_descriptions_that_are_none(name: str, content: bytes, checkpoint: Path):
    put(checkpoint, name, content)
    if (name, content) == (RELEASED, b"{}"):
        assert open_checkpoint(checkpoint).carried["eos_token_id"] is None
        return
    with pytest.raises(CheckpointError, match=str(checkpoint / name)):
        open_checkpoint(checkpoint)


WRONG: dict[str, tuple[str, Callable[[dict], Any], str]] = {
    "pattern no list": (METADATA, model(layer_pattern=5), METADATA),
    "unknown field": (METADATA, model(colour=5), f"{METADATA}: model config has no field 'colour'"),
    "text for a number": (METADATA, model(rope_theta="x"), f"{METADATA}: rope_theta='x'"),
    "a share as text": (METADATA, model(rotary_fraction="x"), METADATA),
    "a base beyond floats": (METADATA, model(rope_theta=10**400), f"{METADATA}: rope_theta is"),
    "no model": (METADATA, lambda m: m.update(config=[]), "no configuration of a model"),
    "unknown balancing dtype": (
        METADATA,
        lambda m: m.update(released_balancing_dtype="foo"),
        "released_balancing_dtype='foo' must be one of float32",
    ),
    "chunks of nothing": (f"{NORM}/.zarray", lambda a: a.update(chunks=[0]), r"chunks=\[0\]"),
    "chunks backwards": (f"{NORM}/.zarray", lambda a: a.update(chunks=[-1]), r"chunks=\[-1\]"),
    "chunks of other axes": (f"{NORM}/.zarray", lambda a: a.update(chunks=[1, 1]), "axes"),
    "another shape": (f"{NORM}/.zarray", lambda a: a.update(shape=[7]), r"shape \[7\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_descriptions_that_say_nonsense(name: str, checkpoint: Path):
    file, change, message = WRONG[name]
    edit(checkpoint, file, change)
    with pytest.raises((CheckpointError, ConfigError), match=message) as error:
        open_checkpoint(checkpoint)
    assert str(checkpoint) in str(error.value)


def test_numbers_of_the_other_byte_order_keep_their_values(made: Path, checkpoint: Path):
    edit(checkpoint, f"{NORM}/.zarray", lambda array: array.update(dtype=">f4"))
    values = np.frombuffer((checkpoint / NORM / "0").read_bytes(), "<f4")
    put(checkpoint, f"{NORM}/0", values.astype(">f4").tobytes())
    path = ("params", "final_norm", "weight")
    found = open_intact(checkpoint).read_leaf(path)
    np.testing.assert_array_equal(found, open_intact(made).read_leaf(path))
    assert found.dtype == np.float32


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]", DEEP, b'{"x": 3}'])
def test_a_manifest_that_is_none(content: bytes, checkpoint: Path):
    (checkpoint / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        open_intact(checkpoint)


@pytest.mark.parametrize("name", ["a\0b", "../outside", "/etc/passwd", ""])
def test_a_manifest_that_lists_what_is_no_file_of_it(name: str, checkpoint: Path):
    edit(checkpoint, "manifest.json", lambda m: m.update({name: {"bytes": 0, "sha256": ""}}))
    with pytest.raises(CheckpointError, match="which is no path below the checkpoint"):
        open_intact(checkpoint)


def test_a_chunk_that_is_a_link_out_of_the_folder(checkpoint: Path, tmp_path: Path):
    chunk = checkpoint / NORM / "0"
    os.rename(chunk, tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"{chunk} leads out of the folder"):
        open_intact(checkpoint).read_leaf(("params", "final_norm", "weight"))


@pytest.mark.parametrize("name", [METADATA, RELEASED])
@pytest.mark.parametrize("change", ["edited", "missing"])
def test_every_command_compares_files_with_the_manifest(name: str, change: str, checkpoint: Path):
    if change == "edited":
        (checkpoint / name).write_bytes((checkpoint / name).read_bytes() + b" ")
    else:
        (checkpoint / name).unlink()
    for command in (
        lambda: inspect.main([str(checkpoint)]),
        lambda: verify.main([str(checkpoint), str(checkpoint)]),
        lambda: convert(checkpoint, checkpoint.parent / "out"),
    ):
        with pytest.raises(CheckpointError, match=name):
            command()
