"""A run's settings as plain values, for config.json and checkpoints, and back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, get_type_hints

from zaya_jax.config import ConfigError
from zaya_jax.training.settings import RunConfig


def to_plain(config: Any) -> Any:
    """Dataclasses as dicts, enums as strings, tuples as lists: what JSON can hold."""
    if dataclasses.is_dataclass(config):
        return {
            field.name: to_plain(getattr(config, field.name))
            for field in dataclasses.fields(config)
        }
    if isinstance(config, enum.Enum):
        return config.value
    if isinstance(config, (tuple, list)):
        return [to_plain(entry) for entry in config]
    return config


def from_plain(fields: Mapping[str, Any]) -> RunConfig:
    """The inverse of `to_plain` for a whole run.

    Raises:
      ConfigError: for a missing or unknown field, or a value that breaks a rule.
    """
    return _build(RunConfig, fields, "")


def setting_differences(saved: Mapping[str, Any], current: RunConfig) -> list[str]:
    """Settings that differ, as "section.field: saved -> current" lines."""
    before, after = _flatten(saved), _flatten(to_plain(current))
    return [
        f"{name}: {before.get(name)} -> {after.get(name)}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _build(cls: Any, fields: Mapping[str, Any], where: str) -> Any:
    types = get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}
    for name in fields:
        if name not in known:
            raise ConfigError(f"config has no field {where + name!r}")
    values = {
        name: _build(types[name], value, f"{where}{name}.")
        if dataclasses.is_dataclass(types[name])
        else value
        for name, value in fields.items()
    }
    try:
        return cls(**values)
    except TypeError as error:  # a required field is missing
        raise ConfigError(f"config section {where.rstrip('.') or 'run'!r}: {error}") from error


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
