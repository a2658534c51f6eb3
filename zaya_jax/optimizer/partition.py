"""Different update rules for different parameters, told apart by name.

The state of a rule holds arrays for its own parameters only: no placeholders, nothing for those
of the others. Parameter trees are nested dicts, and so are the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import optax

Tree = Mapping[str, Any]


def partition(
    rules: Mapping[str, optax.GradientTransformation],
    rule_of: Callable[[tuple[str, ...]], str],
) -> optax.GradientTransformation:
    """Applies to each parameter the rule that its path of names has.

    Args:
      rules: transformations by name.
      rule_of: name of the rule for a path such as ("layers", "experts", "down").
    """

    def part(tree: Tree, rule: str) -> dict[str, Any]:
        return select(tree, lambda path: rule_of(path) == rule)

    def init(params: Any) -> dict[str, optax.OptState]:
        return {name: rule.init(part(params, name)) for name, rule in rules.items()}

    def update(
        updates: Any, state: dict[str, optax.OptState], params: Any = None
    ) -> tuple[Any, dict[str, optax.OptState]]:
        merged: dict[str, Any] = {}
        new_state = {}
        for name, rule in rules.items():
            own_params = None if params is None else part(params, name)
            own, new_state[name] = rule.update(part(updates, name), state[name], own_params)
            merged = merge(merged, own)
        return _ordered_like(merged, updates), new_state

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def select(
    tree: Tree, keep: Callable[[tuple[str, ...]], bool], path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The leaves whose path is kept, in dicts without empty branches."""
    kept: dict[str, Any] = {}
    for name, child in tree.items():
        if isinstance(child, Mapping):
            branch = select(child, keep, (*path, name))
            if branch:
                kept[name] = branch
        elif keep((*path, name)):
            kept[name] = child
    return kept


def merge(one: Tree, other: Tree) -> dict[str, Any]:
    """Both trees in one; they share branches but no leaves."""
    merged = dict(one)
    for name, child in other.items():
        merged[name] = merge(merged[name], child) if name in merged else child
    return merged


def _ordered_like(tree: Tree, example: Tree) -> dict[str, Any]:
    return {
        name: _ordered_like(tree[name], child) if isinstance(child, Mapping) else tree[name]
        for name, child in example.items()
    }
