"""What kind of thing each parameter is, decided from its name, and what follows for the optimiser.

| kind | parameters | Muon run | weight decay |
| --- | --- | --- | --- |
| matrix | `weight` of linear layers, experts' `gate_up` and `down`, adapters | Muon | yes |
| table | `embedding`, `head_weight` | AdamW | yes |
| convolution | `grouped_conv`, `depthwise_conv` | AdamW | the grouped one |
| vector | `weight` of norms, every `*bias`, every `*scale`, `key_temperature` | AdamW | no |

Rank cannot decide this: layers are stacked, so a norm's vector is stored as a matrix and an
expert's matrix as an array of four axes.
"""

from __future__ import annotations

import enum
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, KeyEntry


class ParameterKind(enum.StrEnum):
    """What a parameter does, which decides how it is optimised."""

    MATRIX = "matrix"  # its last two axes map a vector to a vector
    TABLE = "table"  # one row for each token of the vocabulary
    CONVOLUTION = "convolution"
    VECTOR = "vector"


_TABLES = frozenset({"embedding", "head_weight"})
_EXPERT_MATRICES = frozenset({"gate_up", "down"})
_ADAPTERS = frozenset({"lora_a", "lora_b"})  # as in zaya_jax/lora.py
_CONVOLUTIONS = frozenset({"grouped_conv", "depthwise_conv"})


def parameter_kind(path: tuple[str, ...]) -> ParameterKind:
    """The kind of the parameter at this path of names.

    Raises:
      ValueError: for a parameter that the table above does not know.
    """
    name = path[-1]
    if name == "weight":
        is_norm = len(path) > 1 and path[-2].endswith("norm")
        return ParameterKind.VECTOR if is_norm else ParameterKind.MATRIX
    if name in _EXPERT_MATRICES | _ADAPTERS:
        return ParameterKind.MATRIX
    if name in _TABLES:
        return ParameterKind.TABLE
    if name in _CONVOLUTIONS:
        return ParameterKind.CONVOLUTION
    if name == "key_temperature" or name.endswith(("bias", "scale")):
        return ParameterKind.VECTOR
    raise ValueError(
        f"parameter {'/'.join(path)!r} belongs to no weight-decay group; add its name to "
        "zaya_jax/optimizer/groups.py"
    )


def decays(path: tuple[str, ...]) -> bool:
    """Whether the parameter at this path of names is shrunk by weight decay.

    Raises:
      ValueError: for a parameter of unknown kind.
    """
    kind = parameter_kind(path)
    return kind in (ParameterKind.MATRIX, ParameterKind.TABLE) or path[-1] == "grouped_conv"


def uses_muon(path: tuple[str, ...]) -> bool:
    """Whether a Muon run orthogonalises the updates of this parameter.

    Raises:
      ValueError: for a parameter of unknown kind.
    """
    return parameter_kind(path) is ParameterKind.MATRIX


def decay_mask(params: Any) -> Any:
    """A tree of booleans like `params` (arrays or their abstract shapes)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: decays(names_of(path)), params)


def optimizer_groups(params: Any, *, muon: bool) -> dict[str, list[str]]:
    """The names in each group, by rule and decay, for people to read; no group is empty."""
    groups: dict[str, list[str]] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        names = names_of(path)
        rule = "Muon" if muon and uses_muon(names) else "AdamW"
        decay = "decayed" if decays(names) else "not decayed"
        groups.setdefault(f"{rule}, {decay}", []).append("/".join(names))
    return dict(sorted(groups.items()))


def names_of(path: tuple[KeyEntry, ...]) -> tuple[str, ...]:
    """The plain names along a JAX key path."""
    return tuple(
        str(entry.key)
        if isinstance(entry, DictKey)
        else entry.name
        if isinstance(entry, GetAttrKey)
        else str(entry)
        for entry in path
    )
