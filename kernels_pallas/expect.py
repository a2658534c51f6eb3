"""Refusing arrays that do not fit, by name, before a form is chosen.

Kernels read by index: what lies beyond a shorter array would be read without a word, and a float
in the place of an index finds nothing. XLA would broadcast or complain of its own inner shapes.
So every operation checks its arguments here, whichever form is to run.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas.backend import KernelError


def axes(operation: str, **arrays: tuple[jax.Array | None, str]) -> None:
    """Refuse arrays with another number of axes than the names given.

    Args:
      operation: its name, for the error.
      arrays: by name, the array (None: absent) and the names of its axes, separated by spaces.

    Raises:
      KernelError: names every array that does not fit.
    """
    wrong = [
        f"{name} is {array.shape}, must be [{', '.join(names.split())}]"
        for name, (array, names) in arrays.items()
        if array is not None and array.ndim != len(names.split())
    ]
    if wrong:
        raise KernelError(f"{operation}: shapes do not fit together: {'; '.join(wrong)}")


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


def integers(operation: str, **values: Any) -> None:
    """Refuse indices, ids and counts that are not integers.

    Args:
      operation: its name, for the error.
      values: by name, an array or a number (None: absent).

    Raises:
      KernelError: names every argument of another dtype.
    """
    dtypes = {name: jnp.result_type(v) for name, v in values.items() if v is not None}
    wrong = [
        f"{name} has dtype {dtype}, must be an integer"
        for name, dtype in dtypes.items()
        if not jnp.issubdtype(dtype, jnp.integer)
    ]
    if wrong:
        raise KernelError(f"{operation}: {'; '.join(wrong)}")
