"""A checkpoint of this project: a training step or a converted release, read in slices.

DIR/variables       parameters and balancing biases (Orbax)
    metadata        resolved config (JSON)
    manifest.json   checksum of every file
    released/       config.json, tokenizer and the like, when it came from a release
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from zaya_jax.checkpoint.companions import find_companions
from zaya_jax.checkpoint.hub_config import CARRIED_KEYS, CONFIG_FILE
from zaya_jax.checkpoint.layouts import TRANSFORMERS
from zaya_jax.checkpoint.manager import CheckpointError, read_json, saved_steps
from zaya_jax.checkpoint.manifest import MANIFEST, find_damage, is_finished
from zaya_jax.checkpoint.raw_chunks import ARRAY_METADATA, Manifest, RawArray, open_raw_array
from zaya_jax.checkpoint.reader import Index, Leaf, Reader
from zaya_jax.checkpoint.tensor_rule import LeafPath
from zaya_jax.config import ModelConfig

VARIABLES = "variables"
METADATA = "metadata"
TOKENIZER_FILE = "tokenizer.json"
RELEASED = "released"
RELEASED_BALANCING = "released_balancing_dtype"  # key of the metadata
TREE_METADATA = "_METADATA"  # Orbax's description of a tree

_STORED_DTYPES = ("float32", "bfloat16", "float16")


class OrbaxReader(Reader):
    """One checkpoint in Orbax's format."""

    layout = "orbax"

    def __init__(self, folder: Path) -> None:
        """Opens every array, and checks tree and shapes against the saved configuration.

        Raises:
          CheckpointError: when it is unfinished or holds something else than a model.
        """
        if not is_finished(folder):
            raise CheckpointError(f"{folder} was not completely written; choose another one")
        self.path = folder
        metadata = read_json(folder, METADATA)
        self.config = ModelConfig.from_dict(metadata["config"]["model"])
        self.rules = TRANSFORMERS.rules(self.config)
        self._manifest = _read_manifest(folder)
        self._arrays = _open_arrays(folder, self._manifest)
        self.leaves = self._checked_leaves()
        released = _released_folder(folder, metadata)
        self.companions = find_companions(released) if released else _run_tokenizer(metadata)
        self.carried = _carried_keys(released, self.companions)
        self.is_trained_here = RELEASED_BALANCING not in metadata
        self.notes = []
        balancing = metadata.get(RELEASED_BALANCING, "float32")
        self.released_balancing = ts.dtype(balancing).numpy_dtype

    def read(self, path: LeafPath, index: Index) -> np.ndarray:
        """A part of a leaf."""
        return self._arrays[path].read(index)

    def find_damage(self) -> str | None:
        """The first difference from the manifest; raw chunks are checked when they are read."""
        if not all(isinstance(array, RawArray) for array in self._arrays.values()):
            return find_damage(self.path)
        folders = {array_folder(path) for path in self._arrays}
        for name, entry in self._manifest.items():
            folder, _, file = name.rpartition("/")
            if folder in folders and file != ARRAY_METADATA:
                continue
            try:
                content = (self.path / name).read_bytes()
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                return f"{name} has changed since it was written (its checksum differs)"
        return None

    def place(self, path: LeafPath, position: tuple[int, ...]) -> str:
        """Leaf and folder."""
        return f"{self.path / VARIABLES}: leaf {'/'.join(path)!r}"

    def release(self) -> None:
        """Nothing is held."""

    def _checked_leaves(self) -> dict[LeafPath, Leaf]:
        expected = {rule.path: rule for rule in self.rules}
        where = self.path / VARIABLES
        for path in expected:
            if path not in self._arrays:
                raise CheckpointError(f"{where} lacks {'/'.join(path)!r}")
        leaves = {}
        for path, array in self._arrays.items():
            name = "/".join(path)
            if path not in expected:
                raise CheckpointError(f"{where} has the unknown leaf {name!r}")
            wanted = expected[path].shape(self.config)
            if array.shape != wanted:
                raise CheckpointError(
                    f"{where}: {name!r} has shape {list(array.shape)}, the configuration asks for "
                    f"{list(wanted)}"
                )
            if array.dtype.name not in _STORED_DTYPES:
                raise CheckpointError(
                    f"{where}: {name!r} is {array.dtype.name}, not floating point"
                )
            leaves[path] = Leaf(expected[path], array.shape, array.dtype, array.chunk)
        return leaves


def find_checkpoint(path: Path) -> Path:
    """The folder of one checkpoint: `path` itself, or the newest finished one below it.

    Raises:
      CheckpointError: when there is none.
    """
    if (path / VARIABLES).is_dir():
        return path
    for directory in (path / "checkpoints", path):
        steps = saved_steps(directory)
        finished = [step for step in steps if is_finished(directory / str(step))]
        if finished:
            return directory / str(finished[-1])
    raise CheckpointError(
        f"{path} holds no finished checkpoint; give a run's --workdir, one of its checkpoints, or "
        "a folder downloaded from the hub (config.json and safetensors files)"
    )


class StoredArray:
    """An array in any form that TensorStore reads."""

    def __init__(self, store: Any, place: str) -> None:
        self.shape = tuple(store.shape)
        self.dtype = np.dtype(store.dtype.numpy_dtype)
        self.chunk = tuple(store.chunk_layout.read_chunk.shape)
        self._store, self._place = store, place

    def read(self, index: Index) -> np.ndarray:
        """A part of the array.

        Raises:
          CheckpointError: when it cannot be read.
        """
        try:
            return self._store[index].read().result()
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{self._place} cannot be read: {reason}") from None


def array_folder(path: LeafPath) -> str:
    """Where Orbax keeps an array that is not in a database, below the checkpoint."""
    return f"{VARIABLES}/{'.'.join(path)}"


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        valid = all({"bytes", "sha256"} <= set(entry) for entry in manifest.values())
    except (ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{folder / MANIFEST} cannot be read ({error})") from None
    if not valid:
        raise CheckpointError(f"{folder / MANIFEST} must give bytes and sha256 of every file")
    return manifest


def _open_arrays(folder: Path, manifest: Manifest) -> dict[LeafPath, StoredArray | RawArray]:
    """All arrays of an Orbax tree, by path."""
    file = folder / VARIABLES / TREE_METADATA
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        driver = "zarr3" if tree.get("use_zarr3") else "zarr"
        is_database = tree["use_ocdbt"]
        paths = [
            tuple(key["key"] for key in entry["key_metadata"])
            for entry in tree["tree_metadata"].values()
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read ({error!r})") from None
    arrays: dict[LeafPath, StoredArray | RawArray] = {}
    for path in paths:
        raw = None if is_database else open_raw_array(folder, array_folder(path), manifest)
        arrays[path] = raw or _open_stored(folder.absolute(), path, driver, is_database)
    return arrays


def _open_stored(folder: Path, path: LeafPath, driver: str, is_database: bool) -> StoredArray:
    if is_database:
        base = {"driver": "file", "path": f"{folder / VARIABLES}/"}
        store: dict[str, Any] = {"driver": "ocdbt", "base": base, "path": f"{'.'.join(path)}/"}
    else:
        store = {"driver": "file", "path": f"{folder / array_folder(path)}/"}
    try:
        opened = ts.open({"driver": driver, "kvstore": store}, read=True).result()
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{folder / VARIABLES}: {'/'.join(path)}: {reason}") from None
    return StoredArray(opened, f"{folder / VARIABLES}: {'/'.join(path)}")


def _released_folder(folder: Path, metadata: dict[str, Any]) -> Path | None:
    """Where the files lie that came with the release this checkpoint was made or trained from."""
    start = metadata["config"].get("init_from")
    candidates = [folder / RELEASED]
    if start:
        candidates += [Path(start) / RELEASED, Path(start)]
    for candidate in candidates:
        if (candidate / CONFIG_FILE).is_file() and not (candidate / "checkpoints").exists():
            return candidate
    return None


def _run_tokenizer(metadata: dict[str, Any]) -> dict[str, Path]:
    """The tokenizer.json that a run was trained with, if it is still there."""
    name = metadata["config"].get("data", {}).get("tokenizer")
    if not name:
        return {}
    shipped = Path(__file__).parents[1] / "data" / "tokenizers" / f"{name}.json"
    path = next((path for path in (Path(name), shipped) if path.is_file()), None)
    return {TOKENIZER_FILE: path} if path else {}


def _carried_keys(released: Path | None, companions: dict[str, Path]) -> dict[str, Any]:
    """Token ids out of the released config.json, or else out of the run's tokenizer."""
    if released is not None:
        keys = json.loads((released / CONFIG_FILE).read_text(encoding="utf-8"))
        return {key: keys.get(key) for key in CARRIED_KEYS}
    if TOKENIZER_FILE not in companions:
        return {}
    tokenizer = json.loads(companions[TOKENIZER_FILE].read_text(encoding="utf-8"))
    ids = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    # "<pad>" is the content of pad_token_id, and so on.
    return {key: ids.get(f"<{key.removesuffix('_token_id')}>") for key in CARRIED_KEYS}
