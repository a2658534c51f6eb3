"""Which parameters weight decay shrinks, decided from their names.

| decays | parameters |
| --- | --- |
| yes | `weight` of linear layers, `embedding`, `head_weight` |
| yes | experts' `gate_up` and `down`, `grouped_conv` |
| no | `weight` of norms, every `*bias`, every `*scale`, `key_temperature`, `depthwise_conv` |

Rank cannot decide this: layers are stacked, so a norm's vector is stored as a matrix.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, KeyEntry

_MATRICES = frozenset({"embedding", "head_weight", "gate_up", "down", "grouped_conv"})
_VECTORS = frozenset({"key_temperature", "depthwise_conv"})


def decays(path: tuple[str, ...]) -> bool:
    """Whether the parameter at this path of names is shrunk by weight decay.

    Raises:
      ValueError: for a parameter that the table above does not know.
    """
    name = path[-1]
    if name == "weight":
        return not (len(path) > 1 and path[-2].endswith("norm"))
    if name in _MATRICES:
        return True
    if name in _VECTORS or name.endswith(("bias", "scale")):
        return False
    raise ValueError(
        f"parameter {'/'.join(path)!r} belongs to no weight-decay group; add its name to "
        "zaya_jax/optimizer/groups.py"
    )


def decay_mask(params: Any) -> Any:
    """A tree of booleans like `params` (arrays or their abstract shapes)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: decays(names_of(path)), params)


def decay_groups(params: Any) -> dict[str, list[str]]:
    """The names in each group, "decayed" and "not decayed", for people to read."""
    groups: dict[str, list[str]] = {"decayed": [], "not decayed": []}
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        names = names_of(path)
        groups["decayed" if decays(names) else "not decayed"].append("/".join(names))
    return groups


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
