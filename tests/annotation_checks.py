"""The type checker behind the import hook of conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def check_annotations(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype for every function except constructors.

    JAX rebuilds pytree dataclasses around stacked leaves, specs and placeholders, where the
    annotated shapes do not hold.
    """
    return function if function.__name__ == "__init__" else beartype(function)
