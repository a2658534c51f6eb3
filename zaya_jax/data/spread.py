"""One function over many inputs: here, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from zaya_jax.data.config import DataError

Input = TypeVar("Input")
Result = TypeVar("Result")


def map_in_processes(
    function: Callable[[Input], Result], inputs: Sequence[Input], workers: int
) -> list[Result]:
    """Results in the order of the inputs; with one worker, made by this process."""
    if workers <= 1:
        return [function(item) for item in inputs]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(function, inputs, chunksize=1)


def map_on_ray(
    function: Callable[[Input], Result], inputs: Sequence[Input], address: str
) -> list[Result]:
    """The same on a Ray cluster, one task an input; Ray repeats tasks whose machine was lost.

    Args:
      function: picklable; every machine needs this package, and the files that it reads and writes
        under the same paths.
      inputs: picklable.
      address: of the cluster; "local" starts one on this machine, "auto" takes the one it is in.

    Raises:
      DataError: when Ray is not installed or the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise DataError("ray is not installed: pip install 'zaya_jax[ray]'") from error
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    try:
        ray.init(**options) if address == "local" else ray.init(address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise DataError(f"ray cluster {address!r} cannot be reached: {error}") from error
    try:
        task: Any = ray.remote(_call)
        return ray.get([task.remote(function, item) for item in inputs])
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None  # what the function raised, without the traces of Ray
    finally:
        ray.shutdown()


def _call(function: Callable[[Input], Result], item: Input) -> Result:
    """What Ray can make a task of, where `function` is no plain one."""
    return function(item)
