"""Typed access to the keys of a released config.json; every complaint names file, key and value."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.strict_json import read_object
from zaya_jax.config import ConfigError

LARGEST = 2**31 - 1  # of any size or count: what a model of any future may have, and no more

_REQUIRED: Any = object()
_SHOWN_CHARACTERS = 60


class ConfigKeys:
    """The keys of one config.json, and which of them have been looked at."""

    def __init__(self, file: Path, keys: dict[str, Any]) -> None:
        self.file = file
        self._keys = keys
        self._used: set[str] = set()

    @classmethod
    def read(cls, file: Path) -> ConfigKeys:
        """Parses the file.

        Raises:
          ConfigError: when it is missing or is no JSON object.
        """
        if not file.exists():
            raise ConfigError(f"{file} does not exist; it comes with the model's files")
        try:
            return cls(file, read_object(file))
        except CheckpointError as error:
            raise ConfigError(str(error)) from None

    def __contains__(self, name: str) -> bool:
        return self._keys.get(name) is not None

    @property
    def unused(self) -> list[str]:
        """Keys that nothing has looked at, sorted."""
        return sorted(set(self._keys) - self._used)

    def error(self, name: str, rule: str) -> ConfigError:
        """What is wrong with a key."""
        shown = json.dumps(self._keys.get(name))
        if len(shown) > _SHOWN_CHARACTERS:
            shown = shown[:_SHOWN_CHARACTERS] + "…"
        return ConfigError(f"{self.file}: {name}={shown}: {rule}")

    def raw(self, name: str) -> Any:
        """The value as it stands; None when absent."""
        self._used.add(name)
        return self._keys.get(name)

    def ignore(self, *names: str) -> None:
        """Notes keys that say nothing about the model."""
        self._used.update(names)

    def integer(self, name: str, default: Any = _REQUIRED, *, least: int = 1) -> Any:
        """A whole number of sensible size; `default`, if given, where the key is absent or null."""
        value = self._scalar(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "must be a whole number")
        if not least <= value <= LARGEST:
            raise self.error(name, f"must lie between {least} and {LARGEST}")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """A finite float; `default`, if given, where the key is absent or null."""
        value = self._scalar(name, default)
        if value is default:
            return value
        number = finite_number(value)
        if number is None:
            raise self.error(name, "must be a finite number")
        return number

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        """True or false."""
        value = self._scalar(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def require(self, name: str, only: Any, why: str) -> None:
        """Refuses any value but `only`; an absent key or null means `only`."""
        value = self.raw(name)
        if value is not None and (
            value != only or isinstance(value, bool) != isinstance(only, bool)
        ):
            raise self.error(name, f"only {json.dumps(only)} is supported: {why}")

    def one_value(self, name: str, count: int, first: int) -> int:
        """The whole number that a list for `count` half-layers holds for one kind of block.

        Args:
          name: of the key; its value may also be the number itself.
          count: of half-layers.
          first: place of the first block of that kind: 0 for attention, 1 for experts. Entries of
            the other kind may be 0 or repeat the number.
        """
        values = self.raw(name)
        if type(values) is int and 1 <= values <= LARGEST:
            return values
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise self.error(name, "must be a whole number or a list of them, one a half-layer")
        if len(values) != count:
            raise self.error(name, f"has {len(values)} entries but zaya_layers has {count}")
        number = values[first]
        if set(values[first::2]) != {number} or set(values) - {0, number}:
            raise self.error(
                name,
                f"must hold one value besides zeros, it holds {sorted(set(values) - {0})[:4]}: all "
                f"layers are alike, and {'expert' if first else 'attention'} blocks come at "
                f"{'odd' if first else 'even'} places",
            )
        if not 1 <= number <= LARGEST:
            raise self.error(name, f"must lie between 1 and {LARGEST}")
        return number

    def _scalar(self, name: str, default: Any) -> Any:
        value = self.raw(name)
        if value is None:
            if default is _REQUIRED:
                raise ConfigError(f"{self.file} lacks the key {name!r}")
            return default
        if isinstance(value, list | dict):
            raise self.error(
                name, "must be one value; lists, one entry a layer, belong to configurations with "
                "zaya_layers"
            )  # fmt: skip
        return value


def finite_number(value: Any) -> float | None:
    """A JSON number as a float; None for whatever is none, or is too large to be one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
