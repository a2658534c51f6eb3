"""The type checker behind the import hook of conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

# As for mypy, an int will do where a float is asked for.
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check_annotations(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype for every function except constructors.

    JAX rebuilds pytree dataclasses around stacked leaves, specs and placeholders, where the
    annotated shapes do not hold.
    """
    return function if function.__name__ == "__init__" else _beartype(function)
