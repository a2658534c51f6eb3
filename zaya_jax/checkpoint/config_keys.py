"""Typed access to the keys of a released config.json; every complaint names file, key and value."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from zaya_jax.config import ConfigError

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
        try:
            keys = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{file} does not exist; it comes with the model's files") from None
        except (ValueError, OSError) as error:
            raise ConfigError(f"{file} cannot be read as JSON: {error}") from None
        if not isinstance(keys, dict):
            raise ConfigError(f"{file} holds no JSON object")
        return cls(file, keys)

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

    def integer(self, name: str, default: Any = _REQUIRED) -> Any:
        """A whole number; `default`, if given, where the key is absent or null."""
        value = self._scalar(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "must be a whole number")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """A finite float; `default`, if given, where the key is absent or null."""
        value = self._scalar(name, default)
        if value is default:
            return value
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self.error(name, "must be a finite number")
        return float(value)

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

    def one_value(self, name: str, count: int) -> int:
        """The whole number that a list for `count` half-layers holds besides its zeros."""
        values = self.raw(name)
        if isinstance(values, int) and not isinstance(values, bool):
            return values
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise self.error(name, "must be a whole number or a list of them, one a half-layer")
        if len(values) != count:
            raise self.error(name, f"has {len(values)} entries but zaya_layers has {count}")
        distinct = sorted(set(values) - {0})
        if len(distinct) != 1:
            raise self.error(
                name,
                f"must hold one value besides zeros, it holds {distinct}: all layers are alike",
            )
        return distinct[0]

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
