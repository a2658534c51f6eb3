"""A checkpoint of this project: a training step or a converted release, read in slices.

DIR/variables       parameters and balancing biases (Orbax)
    metadata        resolved config (JSON)
    manifest.json   checksum of every file
    released/       config.json, tokenizer and the like, when it came from a release
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from zaya_jax.checkpoint.companions import find_companions, inside_folder
from zaya_jax.checkpoint.config_keys import LARGEST
from zaya_jax.checkpoint.error import CheckpointError, reason_of
from zaya_jax.checkpoint.hub_config import CARRIED_KEYS, CONFIG_FILE
from zaya_jax.checkpoint.layouts import TRANSFORMERS
from zaya_jax.checkpoint.manifest import (
    Manifest,
    file_damage,
    find_damage,
    is_finished,
    read_manifest,
    saved_steps,
)
from zaya_jax.checkpoint.raw_chunks import ARRAY_METADATA, RawArray, open_raw_array
from zaya_jax.checkpoint.reader import Index, Leaf, Reader
from zaya_jax.checkpoint.shards import check_is_whole
from zaya_jax.checkpoint.strict_json import read_object
from zaya_jax.checkpoint.tensor_rule import LeafPath
from zaya_jax.config import ConfigError, ModelConfig

VARIABLES = "variables"
METADATA = "metadata"
TOKENIZER_FILE = "tokenizer.json"
RELEASED = "released"
RELEASED_BALANCING = "released_balancing_dtype"  # key of the metadata
# Keys of the metadata of a converted checkpoint: whether a run made it, and its token ids.
TRAINED_HERE = "trained_here"
TOKEN_IDS = "token_ids"
TREE_METADATA = "_METADATA"  # Orbax's description of a tree

_LONGEST_CHAIN = 16  # runs, each begun from the one before

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
        check_is_whole(folder)
        self.path = folder
        self._manifest = read_manifest(folder)
        metadata = read_metadata(folder)
        self.config = saved_config(folder, metadata)
        self.rules = TRANSFORMERS.rules(self.config)
        self._arrays = open_arrays(folder, self._manifest)
        self.leaves = self._checked_leaves()
        released = _released_folder(folder, metadata)
        if released is not None:
            self.companions = find_companions(released)
        elif (folder / RELEASED).is_dir():  # a converted run: its tokenizer and no config.json
            self.companions = find_companions(folder / RELEASED)
        else:
            self.companions = _run_tokenizer(metadata)
        self.carried = (released is None and metadata.get(TOKEN_IDS)) or _carried_keys(
            released, self.companions
        )
        self.is_trained_here = metadata.get(TRAINED_HERE, RELEASED_BALANCING not in metadata)
        self.notes = []
        balancing = metadata.get(RELEASED_BALANCING, "float32")
        if balancing not in _STORED_DTYPES:
            raise CheckpointError(
                f"{folder / METADATA}: {RELEASED_BALANCING}={balancing!r} must be one of "
                f"{', '.join(_STORED_DTYPES)}"
            )
        self.released_balancing = ts.dtype(balancing).numpy_dtype

    def read(self, path: LeafPath, index: Index) -> np.ndarray:
        """A part of a leaf."""
        return self._arrays[path].read(index)

    def find_damage(self) -> str | None:
        """The first difference from the manifest; raw chunks are checked when they are read."""
        if not all(isinstance(array, RawArray) for array in self._arrays.values()):
            return find_damage(self.path)
        folders = {array_folder(path) for path in self._arrays}
        for name in self._manifest:
            folder, _, file = name.rpartition("/")
            if folder in folders and file != ARRAY_METADATA:
                continue
            damage = file_damage(self.path, self._manifest, name)
            if damage is not None:
                return damage
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
            raise CheckpointError(f"{self._place} cannot be read: {reason_of(error)}") from None


def array_folder(path: LeafPath) -> str:
    """Where Orbax keeps an array that is not in a database, below the checkpoint."""
    return f"{VARIABLES}/{'.'.join(path)}"


def read_metadata(folder: Path) -> dict[str, Any]:
    """What was saved beside the arrays; its "config" is an object that has a "model".

    Raises:
      CheckpointError: when it is something else.
    """
    file = folder / METADATA / METADATA
    metadata = read_object(file)
    config = metadata.get("config")
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise CheckpointError(f"{file} holds no configuration of a model (config, model)")
    if not isinstance(metadata.get(TOKEN_IDS, {}), dict):
        raise CheckpointError(f"{file}: {TOKEN_IDS} must be an object")
    return metadata


def saved_config(folder: Path, metadata: dict[str, Any]) -> ModelConfig:
    """The architecture that the metadata of a checkpoint tells.

    Raises:
      ConfigError: when it is none.
    """
    fields = metadata["config"]["model"]
    try:
        config = ModelConfig.from_dict(fields)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{folder / METADATA / METADATA}: {reason_of(error)}") from None
    for name, value in fields.items():
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigError(f"{folder / METADATA / METADATA}: {name} is above {LARGEST}")
    return config


def open_arrays(folder: Path, manifest: Manifest) -> dict[LeafPath, StoredArray | RawArray]:
    """All arrays of an Orbax tree, by path."""
    file = folder / VARIABLES / TREE_METADATA
    tree = read_object(file)
    try:
        driver = "zarr3" if tree.get("use_zarr3") else "zarr"
        is_database = tree["use_ocdbt"]
        paths = [
            tuple(key["key"] for key in entry["key_metadata"])
            for entry in tree["tree_metadata"].values()
        ]
        if not all(isinstance(key, str) and "/" not in key for path in paths for key in path):
            raise TypeError("a key is no name")
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} describes no tree of arrays ({error!r})") from None
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
        place = f"{folder / VARIABLES}: {'/'.join(path)}"
        raise CheckpointError(f"{place}: {reason_of(error)}") from None
    return StoredArray(opened, f"{folder / VARIABLES}: {'/'.join(path)}")


def _released_folder(folder: Path, metadata: dict[str, Any]) -> Path | None:
    """Where the files lie that came with the release this checkpoint was made or trained from.

    Runs may have begun from one another; at most `_LONGEST_CHAIN` of them are followed.
    """
    for _ in range(_LONGEST_CHAIN):
        start = metadata["config"].get("init_from")
        candidates = [folder / RELEASED]
        if start and isinstance(start, str) and "\0" not in start:
            candidates += [Path(start) / RELEASED, Path(start)]
        for candidate in candidates:
            is_released = candidate.name == RELEASED or any(candidate.glob("*.safetensors"))
            if is_released and (candidate / CONFIG_FILE).is_file():
                return candidate
        if len(candidates) == 1:
            return None
        try:
            folder = find_checkpoint(Path(start))
            metadata = read_metadata(folder)
        except CheckpointError:  # gone, or damaged: what it began from is not known any more
            return None
    return None


def _run_tokenizer(metadata: dict[str, Any]) -> dict[str, Path]:
    """The tokenizer.json that a run was trained with, if it is still there."""
    data = metadata["config"].get("data")
    name = data.get("tokenizer") if isinstance(data, dict) else None
    if not name or not isinstance(name, str) or "\0" in name:
        return {}
    shipped = Path(__file__).parents[1] / "data" / "tokenizers" / f"{name}.json"
    path = next((path for path in (Path(name), shipped) if path.is_file()), None)
    return {TOKENIZER_FILE: path} if path else {}


def _carried_keys(released: Path | None, companions: dict[str, Path]) -> dict[str, Any]:
    """Token ids out of the released config.json, or else out of the run's tokenizer."""
    if released is not None:
        keys = read_object(inside_folder(released, CONFIG_FILE))
        return {key: keys.get(key) for key in CARRIED_KEYS}
    if TOKENIZER_FILE not in companions:
        return {}
    file = companions[TOKENIZER_FILE]
    try:
        tokens = read_object(file).get("added_tokens", [])
        ids = {token["content"]: token["id"] for token in tokens}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: added_tokens is no list of tokens ({error!r})") from None
    # "<pad>" is the content of pad_token_id, and so on.
    return {key: ids.get(f"<{key.removesuffix('_token_id')}>") for key in CARRIED_KEYS}
