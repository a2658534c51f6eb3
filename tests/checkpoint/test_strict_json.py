"""JSON of strangers: whatever could be misread, or overflow something, is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.hub_folders import (
    TINY,
    new_keys,
    random_tensors,
    write_folder,
)
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.checkpoint.strict_json import parse_object, read_object
from zaya_jax.config import ConfigError

FAULTS = {
    "a key twice": (b'{"a": 1, "a": 2}', "key 'a' occurs twice"),
    "a key twice inside": (b'{"x": [{"b": 1, "b": 1}]}', "key 'b' occurs twice"),
    "nested without end": (b"[" * 200_000, "nested too deeply"),
    "objects without end": (b'{"a":' * 200_000, "nested too deeply"),
    "half a character as key": (b'{"\\ud800": 1}', r"half a surrogate pair, '\\ud800'"),
    "half a character as value": (b'{"a": ["\\uDFFF"]}', "half a surrogate pair"),
    "a number of 5000 digits": (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
    "no object": (b"[1]", "no JSON object"),
    "no UTF-8": (b'{"a": "\xff"}', "utf-8"),
    "nothing": (b"", "Expecting value"),
    "a tail": (b"{} {}", "Extra data"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_refused_with_a_reason(name: str, tmp_path: Path):
    data, reason = FAULTS[name]
    with pytest.raises(ValueError, match=reason):
        parse_object(data)
    file = tmp_path / "file.json"
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=reason) as error:
        read_object(file)
    assert str(error.value).startswith(f"{file} cannot be read as JSON: ")
    assert "\n" not in str(error.value)


def test_whole_characters_outside_the_plane_are_fine():
    assert parse_object(b'{"a": "\\ud83d\\ude00", "b": "\xf0\x9f\x98\x80"}') == {
        "a": "\U0001f600",
        "b": "\U0001f600",
    }


def test_a_file_without_end_is_not_read(tmp_path: Path):
    with pytest.raises(CheckpointError, match="more than 100,000,000 bytes"):
        read_object(Path("/dev/zero"))
    with pytest.raises(CheckpointError, match="absent cannot be read as JSON: No such file"):
        read_object(tmp_path / "absent")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    tensors = random_tensors("transformers", TINY)
    return lambda folder: write_folder(folder, new_keys(), tensors, shards=2)


CONFIG, INDEX = "config.json", "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"


@pytest.mark.parametrize("name", [CONFIG, INDEX])
@pytest.mark.parametrize("fault", ["a key twice", "nested without end", "half a character as key"])
def test_every_file_of_a_release_is_read_so(
    name: str, fault: str, sharded: Callable[[Path], Path], tmp_path: Path
):
    folder = sharded(tmp_path / "model")
    (folder / name).write_bytes(FAULTS[fault][0])
    with pytest.raises((CheckpointError, ConfigError), match=FAULTS[fault][1]) as error:
        open_checkpoint(folder)
    assert str(error.value).startswith(str(folder / name))


def test_a_tensor_that_the_index_places_twice(sharded: Callable[[Path], Path], tmp_path: Path):
    folder = sharded(tmp_path / "model")
    text = (folder / INDEX).read_text()
    again = json.dumps({"model.norm.weight": SHARD})[1:-1]
    (folder / INDEX).write_text(text.replace('"weight_map": {', f'"weight_map": {{{again}, '))
    with pytest.raises(CheckpointError, match=r"key 'model\.norm\.weight' occurs twice"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, ".", "", "/", "sub/../x"])
def test_an_index_that_names_no_file(name: str, sharded: Callable[[Path], Path], tmp_path: Path):
    folder = sharded(tmp_path / "model")
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=rf"{folder}|^/ leads out of the folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", [CONFIG, INDEX, SHARD, "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("leads", ["to itself", "nowhere", "out"])
def test_links_that_lead_to_no_file_of_the_folder(
    name: str, leads: str, sharded: Callable[[Path], Path], tmp_path: Path
):
    folder = sharded(tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to({"to itself": name, "nowhere": "gone", "out": "/dev/zero"}[leads])
    with pytest.raises((CheckpointError, ConfigError), match=name) as error:
        open_checkpoint(folder)
    assert str(folder) in str(error.value)
