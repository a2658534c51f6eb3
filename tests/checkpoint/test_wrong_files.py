"""Files of a released folder that are missing, cut off, linked, or disagree with each other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.hub_folders import (
    TINY,
    new_keys,
    random_tensors,
    v2_keys,
    write_folder,
    write_safetensors,
)
from tests.checkpoint.test_wrong_inputs import refused
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint

KEYS = {"transformers": new_keys(), "zyphra": v2_keys()}
INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"


def sharded(folder: Path) -> Path:
    return write_folder(folder, KEYS["zyphra"], random_tensors("zyphra", TINY), shards=3)


def edit_index(folder: Path, change: Callable[[dict], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_a_missing_shard(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    (folder / SECOND).unlink()
    refused(folder, f"{SECOND} is missing")


def test_a_missing_shard_without_index(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    (folder / INDEX).unlink()
    (folder / SECOND).unlink()
    refused(folder, f"{SECOND} is missing")


def test_a_tensor_in_two_shards(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    extra = {"model.final_norm.weight": np.zeros(32, np.float32)}
    (folder / INDEX).unlink()
    write_safetensors(folder / "more.safetensors", extra)
    refused(folder, "tensor 'model.final_norm.weight' is in two files")


@pytest.mark.parametrize("action", ["misplaced", "unlisted", "promised", "elsewhere", "stray"])
def test_an_index_that_disagrees(action: str, tmp_path: Path):
    folder = sharded(tmp_path / "model")
    name = "model.final_norm.weight"
    here = json.loads((folder / INDEX).read_text())["weight_map"][name]
    other = "model-00001-of-00003.safetensors" if "00001" not in here else SECOND
    if action == "misplaced":
        edit_index(folder, lambda index: index.update({name: other}))
        refused(folder, rf"places tensor '{name}' in {other}, but it is in {here}")
    elif action == "unlisted":
        edit_index(folder, lambda index: index.pop(name))
        refused(folder, rf"{here}: tensor '{name}' is not in {INDEX}")
    elif action == "promised":
        edit_index(folder, lambda index: index.update({"model.extra": here}))
        refused(folder, rf"{INDEX} places tensor 'model.extra' in {here}, which lacks it")
    elif action == "elsewhere":
        edit_index(folder, lambda index: index.update({name: "../outside.safetensors"}))
        refused(folder, "leads out of the folder")
    else:
        write_safetensors(folder / "model-00004-of-00004.safetensors", {})
        refused(folder, r"model-00004-of-00004.safetensors is not in the index")


@pytest.mark.parametrize("where", ["beside shards", "a broken link"])
def test_one_file_beside_an_index_of_shards(where: str, tmp_path: Path):
    """Readers disagree on which of the two is the model."""
    folder = sharded(tmp_path / "model")
    if where == "a broken link":
        (folder / "model.safetensors").symlink_to("gone")
    else:
        write_safetensors(folder / "model.safetensors", random_tensors("zyphra", TINY))
    refused(folder, rf"{folder}/model\.safetensors is not in the index {INDEX}; which is right")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {}}'])
def test_an_index_that_is_none(content: str, tmp_path: Path):
    folder = sharded(tmp_path / "model")
    (folder / INDEX).write_text(content)
    refused(folder, INDEX)


@pytest.mark.parametrize("name", [SECOND, INDEX, "config.json", "tokenizer.json"])
def test_a_link_out_of_the_folder(name: str, tmp_path_factory: pytest.TempPathFactory):
    folder = sharded(tmp_path_factory.mktemp("a") / "model")
    outside = tmp_path_factory.mktemp("outside") / name
    outside.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    refused(folder, rf"{name} leads out of the folder, to {outside}")


def test_a_link_inside_the_folder_is_fine(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    os.rename(folder / SECOND, folder / "blob")
    (folder / SECOND).symlink_to("blob")
    open_checkpoint(folder)


@pytest.mark.parametrize("missing", [1, 10_000])
def test_a_truncated_file(missing: int, tmp_path: Path):
    folder = sharded(tmp_path / "model")
    size = (folder / SECOND).stat().st_size
    os.truncate(folder / SECOND, size - missing)
    refused(folder, rf"{SECOND}: tensor '.*': its bytes end at .* but the file has")


def test_a_header_that_lies_names_file_and_tensor(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    content = (folder / SECOND).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = next(iter(header))
    header[name]["data_offsets"][1] += 1 << 40
    text = json.dumps(header).encode()
    (folder / SECOND).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    refused(folder, rf"{SECOND}: tensor '{name}'")


def test_pickles_are_never_loaded(tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(new_keys()))
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    refused(folder, "holds no safetensors file; pytorch_model.bin is a pickle")


def test_no_code_here_can_unpickle():
    folder = Path(__file__).parents[2] / "zaya_jax" / "checkpoint"
    for path in folder.glob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load", "np.load", "allow_pickle", "from pickle"):
            assert word not in text, path


def test_a_folder_without_config(tmp_path: Path):
    folder = sharded(tmp_path / "model")
    (folder / "config.json").unlink()
    refused(folder, r"config\.json is missing")


@pytest.mark.parametrize("kind", ["absent", "empty", "file"])
def test_no_checkpoint_at_all(kind: str, tmp_path: Path):
    path = tmp_path / "model"
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("")
    with pytest.raises(CheckpointError, match=str(path)):
        open_checkpoint(path)


def test_a_snapshot_of_the_hubs_cache_may_link_to_its_blobs(tmp_path: Path):
    folder = sharded(tmp_path / "plain")
    cache = tmp_path / "models--Zyphra--TINY"
    snapshot, blobs = cache / "snapshots" / "0123abcd", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / f"{number}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    names = open_checkpoint(snapshot).leaves
    assert ("params", "embedding") in names
    (snapshot / "config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    (snapshot / "config.json").symlink_to(tmp_path / "config.json")
    refused(snapshot, "leads out of the folder")
