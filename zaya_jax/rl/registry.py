"""Functions by name: ours by a short one, a user's own by import path `package.module:function`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from zaya_jax.rl.errors import RLError

F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[F]):
    """A dictionary of functions that all have one signature."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # what the functions are, for messages: "advantage", "loss"
        self._functions: dict[str, F] = {}

    @property
    def names(self) -> list[str]:
        """Registered names, sorted."""
        return sorted(self._functions)

    def register(self, name: str, function: F) -> F:
        """Adds a function.

        Raises:
          RLError: for a name that is taken or looks like an import path.
        """
        if name in self._functions:
            raise RLError(f"{self.kind} {name!r} is registered already; choose another name")
        if ":" in name:
            raise RLError(f"{self.kind} {name!r}: a name must not contain ':' (import paths do)")
        self._functions[name] = function
        return function

    def resolve(self, name: str) -> F:
        """The function of that name, or the one at that import path.

        Raises:
          RLError: for an unknown name, or a path that leads to nothing callable.
        """
        if ":" in name:
            return self._imported(name)
        if name not in self._functions:
            nearest = difflib.get_close_matches(name, self._functions, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(self.names)}"
            raise RLError(f"no {self.kind} is called {name!r}; {hint} (or give module:function)")
        return self._functions[name]

    def _imported(self, path: str) -> F:
        module_name, _, attribute = path.partition(":")
        try:
            function = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise RLError(f"{self.kind} {path!r} cannot be imported: {error}") from error
        if not callable(function):
            raise RLError(f"{self.kind} {path!r} is a {type(function).__name__}, not a function")
        return function
