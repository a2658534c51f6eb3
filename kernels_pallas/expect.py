"""Refusing arguments that do not fit, by name, before a form is chosen.

Kernels read by index: what lies beyond a shorter array would be read without a word, and a float
in the place of an index finds nothing. XLA would broadcast or complain of its own inner shapes.
So every operation checks its arguments here, whichever form is to run. NumPy arrays are taken like
JAX's. Values are looked at only where they are known: numbers, and arrays outside of a trace.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernels_pallas.backend import KernelError

# Axes that count things, of which there may be none; without channels there is nothing to compute.
_MAY_BE_EMPTY = (
    "batch",
    "seq",
    "queries",
    "keys",
    "tokens",
    "rows",
    "columns",
    "half_rotary",
    "reach",
)


def axes(operation: str, **arrays: tuple[Any, str]) -> None:
    """Refuse arrays that are absent, have other axes than those named, or no channels.

    Args:
      operation: its name, for the error.
      arrays: by name, the array and the names of its axes, separated by spaces.

    Raises:
      KernelError: names every array that does not fit.
    """
    wrong, empty = [], []
    for name, (array, axis_names) in arrays.items():
        names = axis_names.split()
        shape = None if array is None else jnp.shape(array)
        if shape is None or len(shape) != len(names):
            wrong.append(f"{name} is {shape}, must be [{', '.join(names)}]")
        else:
            sizes = zip(names, shape, strict=True)
            none = [axis for axis, size in sizes if size == 0 and axis not in _MAY_BE_EMPTY]
            empty += [f"{name} is {shape}, {axis} must be at least 1" for axis in none]
    if wrong or empty:
        raise KernelError(f"{operation}: shapes do not fit together: {'; '.join(wrong or empty)}")


def shapes(operation: str, **arrays: tuple[Any, tuple[int, ...]]) -> None:
    """Refuse arrays whose shape is not the expected one.

    Args:
      operation: its name, for the error.
      arrays: by name, the array or number (None: absent) and the shape that the others ask of it.

    Raises:
      KernelError: names every array that does not fit.
    """
    wrong = [
        f"{name} is {jnp.shape(array)}, must be {shape}"
        for name, (array, shape) in arrays.items()
        if array is not None and jnp.shape(array) != shape
    ]
    if wrong:
        raise KernelError(f"{operation}: shapes do not fit together: {'; '.join(wrong)}")


def floats(operation: str, **values: Any) -> list[Any]:
    """The values as JAX arrays of floats; None (absent) stays None.

    Raises:
      KernelError: names every argument of another kind.
    """
    return _of_kind(operation, values, jnp.floating, "a float")


def integers(operation: str, **values: Any) -> list[Any]:
    """Indices, ids and counts as int32 arrays; None (absent) and plain numbers stay.

    Raises:
      KernelError: names every argument of another kind.
    """
    arrays = _of_kind(operation, values, jnp.integer, "an integer")
    return [a if a is None or isinstance(a, int) else a.astype(jnp.int32) for a in arrays]


def _of_kind(operation: str, values: dict[str, Any], kind: Any, what: str) -> list[Any]:
    found, wrong = [], []
    for name, value in values.items():
        is_number = isinstance(value, (bool, int, float, np.generic))
        if not (value is None or is_number or isinstance(value, (jax.Array, np.ndarray))):
            wrong.append(f"{name} is a {type(value).__name__}, must be an array")
        elif value is not None and not jnp.issubdtype(jnp.result_type(value), kind):
            wrong.append(f"{name} has dtype {jnp.result_type(value)}, must be {what}")
        elif isinstance(value, np.ndarray):
            found.append(jnp.asarray(value))
        else:
            found.append(value.item() if isinstance(value, np.generic) else value)
    if wrong:
        raise KernelError(f"{operation}: {'; '.join(wrong)}")
    return found


def within(operation: str, **values: tuple[Any, int, int | None]) -> None:
    """Refuse integers out of range where they are known.

    Args:
      operation: its name, for the error.
      values: by name, the array or number (None: absent), the least and the greatest (None: no
        end) value allowed.

    Raises:
      KernelError: names the first argument out of range and one of its values.
    """
    for name, (value, least, greatest) in values.items():
        numbers = known(value)
        if numbers is None:
            continue
        outside = (numbers < least) | (False if greatest is None else numbers > greatest)
        if np.any(outside):
            limits = f"at least {least}" if greatest is None else f"in {least}..{greatest}"
            is_ = "=" if numbers.ndim == 0 else "holds"
            number = numbers[outside].flat[0]
            raise KernelError(f"{operation}: {name} {is_} {number}: must be {limits}")


def known(value: Any) -> np.ndarray | None:
    """The numbers, or None where they are absent, traced or on another process' devices."""
    if value is None or isinstance(value, jax.core.Tracer):
        return None
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return None
    return np.asarray(value)
