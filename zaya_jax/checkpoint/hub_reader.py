"""A folder as downloaded from the hub: config.json and safetensors files in any released layout.

Everything is checked before a tensor is used: headers, index against files, names, shapes, dtypes.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np

from zaya_jax.checkpoint.companions import find_companions, inside_folder
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.hub_config import CONFIG_FILE, HubConfig, read_hub_config
from zaya_jax.checkpoint.layouts import LAYOUTS, Layout
from zaya_jax.checkpoint.reader import Index, Leaf, Reader
from zaya_jax.checkpoint.safetensors_file import SafetensorsFile
from zaya_jax.checkpoint.strict_json import read_object
from zaya_jax.checkpoint.tensor_rule import LeafPath, Rules, TensorRule
from zaya_jax.config import ModelConfig

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_SHARD_NAME = re.compile(r"(.+)-([0-9]{1,6})-of-([0-9]{1,6})\.safetensors")
_LAYER_OF_NAME = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,8})\.")


class HubReader(Reader):
    """A released checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Reads headers and config.json, and checks all that can be checked without the tensors.

        Raises:
          CheckpointError: names tensor and file.
          ConfigError: names key and file.
        """
        self.path = folder
        hub = read_hub_config(inside_folder(folder, CONFIG_FILE))
        self._tensors = _open_tensors(folder)
        layout = _detect_layout(folder, self._tensors)
        _check_config_belongs(folder, hub, layout)
        self._tensors = _with_canonical_names(layout, self._tensors)
        self.layout = layout.name
        self.config = hub.model
        self.rules = layout.rules(hub.model)
        self._rule_by_path = {rule.path: rule for rule in self.rules}
        _check_layer_count(folder, layout, hub.model, self._tensors)
        _check_tensor_count(folder, self.rules, hub.model, self._tensors)
        _check_names(folder, self.rules, hub.model, self._tensors)
        self.leaves = {rule.path: self._checked_leaf(rule) for rule in self.rules}
        self.carried = hub.carried
        self.is_trained_here = False
        self.notes = []
        if hub.unused:
            self.notes.append(f"{CONFIG_FILE}: keys of unknown meaning: {', '.join(hub.unused)}")
        self.released_balancing = self.leaves["balancing", "biases"].dtype
        self.companions = find_companions(folder)

    def read(self, path: LeafPath, index: Index) -> np.ndarray:
        """A part of a leaf; a view where it lies in one tensor."""
        rule = self._rule_by_path[path]
        inside = index[rule.stacked :]
        ranges = [range(part.start, part.stop) for part in index[: rule.stacked]]
        positions = list(itertools.product(*ranges))
        shape = [*map(len, ranges), *(part.stop - part.start for part in inside)]
        if len(positions) == 1:
            return self._tensor(rule, positions[0])[inside].reshape(shape)
        stacked = np.empty((len(positions), *shape[rule.stacked :]), self.leaves[path].dtype)
        for number, position in enumerate(positions):
            stacked[number] = self._tensor(rule, position)[inside]
            self._file(rule, position)[0].release()  # each may lie in a file of its own
        return stacked.reshape(shape)

    def place(self, path: LeafPath, position: tuple[int, ...]) -> str:
        """Tensor and file."""
        rule = self._rule_by_path[path]
        file, stored = self._file(rule, position[: rule.stacked])
        return f"{file.path}: tensor {stored!r}"

    def release(self) -> None:
        """Lets go of the mapped pages."""
        for file in {id(file): file for file, _ in self._tensors.values()}.values():
            file.release()

    @property
    def tensor_count(self) -> int:
        """Tensors in the files."""
        return len(self._tensors)

    def _file(self, rule: TensorRule, position: tuple[int, ...]) -> tuple[SafetensorsFile, str]:
        return self._tensors[rule.tensor_name(self.config, *position)]

    def _tensor(self, rule: TensorRule, position: tuple[int, ...]) -> np.ndarray:
        file, stored = self._file(rule, position)
        tensor = file.tensor(stored)
        return tensor if rule.unit_axis is None else np.squeeze(tensor, rule.unit_axis)

    def _checked_leaf(self, rule: TensorRule) -> Leaf:
        expected = rule.tensor_shape(self.config)
        dtypes: set[np.dtype] = set()
        for name in rule.names(self.config):
            file, stored = self._tensors[name]
            entry = file.entries[stored]
            if entry.shape != expected:
                hint = _shape_hint(rule, self.config, entry.shape, expected)
                raise CheckpointError(
                    f"{file.path}: tensor {stored!r} has shape {list(entry.shape)}, "
                    f"{CONFIG_FILE} asks for {list(expected)}{hint}"
                )
            dtypes.add(entry.dtype)
            if len(dtypes) > 1:
                both = " and ".join(sorted(dtype.name for dtype in dtypes))
                raise CheckpointError(
                    f"{file.path}: tensor {stored!r} is {entry.dtype.name}, but those of other "
                    f"layers are not ({both}): layers are stacked and must be alike"
                )
        shape = rule.shape(self.config)
        chunk = (1,) * len(shape)
        return Leaf(rule, shape, dtypes.pop(), chunk)


# Canonical tensor name -> the file that holds it and its name there.
Tensors = dict[str, tuple[SafetensorsFile, str]]


def _open_tensors(folder: Path) -> Tensors:
    """Opens all files of the model, and checks them against each other and the index."""
    index = _read_index(folder)
    names = sorted(set(index.values())) if index is not None else _files_without_index(folder)
    tensors: Tensors = {}
    for file_name in names:
        file = SafetensorsFile(inside_folder(folder, file_name))
        for name in file.entries:
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name!r} is in two files, {tensors[name][0].path} and {file.path}"
                )
            tensors[name] = (file, name)
    if index is not None:
        _check_index(folder, index, tensors)
    return tensors


def _read_index(folder: Path) -> dict[str, str] | None:
    """Tensor name to file name; None without an index."""
    if not (folder / INDEX_FILE).exists() and not (folder / INDEX_FILE).is_symlink():
        return None
    file = inside_folder(folder, INDEX_FILE)
    index = read_object(file).get("weight_map")
    if not isinstance(index, dict) or not index or {*map(type, index.values())} != {str}:
        raise CheckpointError(f"{file}: weight_map must map names of tensors to names of files")
    return index


def _files_without_index(folder: Path) -> list[str]:
    """All safetensors files; shards must be numbered without a gap."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        hint = f"; {pickled[0]} is a pickle, which is never loaded" if pickled else ""
        raise CheckpointError(f"{folder} holds no safetensors file{hint}")
    for match in filter(None, map(_SHARD_NAME.fullmatch, names)):
        stem, _, total = match.groups()
        width = len(total)
        for number in range(1, int(total) + 1):
            shard = f"{stem}-{number:0{width}d}-of-{total}.safetensors"
            if shard not in names:
                raise CheckpointError(f"{folder / shard} is missing: {match.group()} is there")
    return names


def _check_index(folder: Path, index: dict[str, str], tensors: Tensors) -> None:
    listed = set(index.values())
    for path in sorted(folder.glob("*.safetensors")):
        is_model = path.name == SINGLE_FILE or _SHARD_NAME.fullmatch(path.name)
        if is_model and path.name not in listed:
            raise CheckpointError(
                f"{path} is not in the index {INDEX_FILE}; which is right? Move the other away"
            )
    for name, file_name in index.items():
        if name not in tensors:
            raise CheckpointError(
                f"{folder / INDEX_FILE} places tensor {name!r} in {file_name}, which lacks it"
            )
        if tensors[name][0].path.name != file_name:
            raise CheckpointError(
                f"{folder / INDEX_FILE} places tensor {name!r} in {file_name}, but it is in "
                f"{tensors[name][0].path.name}"
            )
    for name, (file, _) in tensors.items():
        if name not in index:
            raise CheckpointError(f"{file.path}: tensor {name!r} is not in {INDEX_FILE}")


def _detect_layout(folder: Path, tensors: Tensors) -> Layout:
    found = [
        layout for layout in LAYOUTS.values() if any(layout.marker in name for name in tensors)
    ]
    if len(found) == 1:
        return found[0]
    markers = ", ".join(f"{layout.marker!r} ({layout.name})" for layout in LAYOUTS.values())
    what = "both of" if found else "none of"
    raise CheckpointError(
        f"{folder}: the layout cannot be told: tensor names contain {what} {markers}"
    )


def _check_config_belongs(folder: Path, hub: HubConfig, layout: Layout) -> None:
    if hub.layout is not layout:
        raise CheckpointError(
            f"{folder / CONFIG_FILE} is a {hub.generation} configuration, which goes with tensors "
            f"of the {hub.layout.name} layout, but the tensors are of the {layout.name} layout; "
            "take both from the same release"
        )


def _with_canonical_names(layout: Layout, tensors: Tensors) -> Tensors:
    canonical: Tensors = {}
    for name, (file, stored) in tensors.items():
        today = layout.canonical(name)
        if today in canonical:
            other = canonical[today][1]
            raise CheckpointError(
                f"{file.path}: tensors {other!r} and {stored!r} are two names of the same one"
            )
        canonical[today] = (file, stored)
    return canonical


def _check_layer_count(folder: Path, layout: Layout, config: ModelConfig, tensors: Tensors) -> None:
    matches = {name: _LAYER_OF_NAME.match(name) for name in tensors}
    numbers = {name: int(match.group(1)) for name, match in matches.items() if match}
    expected = config.num_layers * layout.layer_stride
    last = max(numbers, key=lambda name: numbers[name], default=None)
    if last is None or numbers[last] + 1 != expected:
        found = "no tensors of layers"
        if last is not None:
            file, stored = tensors[last]
            found = f"{file.path} has tensors up to {stored!r}"
        raise CheckpointError(
            f"{folder / CONFIG_FILE} describes {expected} layers (num_hidden_layers), but {found}"
        )


def _check_tensor_count(folder: Path, rules: Rules, config: ModelConfig, tensors: Tensors) -> None:
    """Before anything is made for every tensor: a false config.json may ask for billions."""
    for rule in rules:
        asked = math.prod(rule.shape(config)[: rule.stacked])
        if asked > len(tensors):
            name = rule.tensor_name(config, *(0,) * rule.stacked)
            raise CheckpointError(
                f"{folder / CONFIG_FILE} asks for {asked:,} tensors like {name!r} "
                f"(num_experts={config.num_experts}), the files hold {len(tensors):,} in all"
            )


def _check_names(folder: Path, rules: Rules, config: ModelConfig, tensors: Tensors) -> None:
    expected = {name: None for rule in rules for name in rule.names(config)}
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    if extra and missing:
        close = difflib.get_close_matches(missing[0], extra, n=1, cutoff=0.0)
        file, stored = tensors[close[0]]
        raise CheckpointError(
            f"{folder} lacks tensor {missing[0]!r} ({len(missing)} in all) and {file.path} has the "
            f"unknown tensor {stored!r} ({len(extra)} in all): renamed?"
        )
    if missing:
        raise CheckpointError(
            f"{folder} lacks tensor {missing[0]!r} ({len(missing)} in all)"
            + (" though a configuration with that many layers needs it" if len(missing) > 9 else "")
        )
    if extra:
        file, stored = tensors[extra[0]]
        tied = (
            " (the head is tied: the embedding is the head)" if stored == "lm_head.weight" else ""
        )
        raise CheckpointError(f"{file.path}: unknown tensor {stored!r} ({len(extra)} in all){tied}")


def _shape_hint(
    rule: TensorRule, config: ModelConfig, found: tuple[int, ...], expected: tuple[int, ...]
) -> str:
    """What may be wrong, in words."""
    if rule.path[-2:] == ("query", "weight") and found[1:] == expected[1:]:
        heads = found[0] / config.head_dim
        return (
            f": num_attention_heads gives {config.num_query_heads} heads of {config.head_dim} "
            f"channels, the tensor has {heads:g}"
        )
    if Counter(found) == Counter(expected):
        return ": transposed?"
    return ""
