"""Running an operation in both forms and comparing values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernels_pallas import backend


def value_and_gradients(
    function: Callable[..., Any], arguments: Sequence[Any], *, seed: int = 0
) -> tuple[Any, Any]:
    """Outputs, and the gradients of all floating arguments for random output cotangents."""
    floating = [i for i, a in enumerate(arguments) if _is_floating(a)]

    @jax.jit
    def run(arguments: tuple) -> tuple[Any, Any]:
        def of_floating(*chosen: Any) -> Any:
            full = list(arguments)
            for position, value in zip(floating, chosen, strict=True):
                full[position] = value
            return function(*full)

        outputs, pullback = jax.vjp(of_floating, *(arguments[i] for i in floating))
        return outputs, pullback(cotangents(outputs, seed))

    return run(tuple(arguments))


def cotangents(outputs: Any, seed: int) -> Any:
    leaves, tree = jax.tree.flatten(outputs)
    keys = jax.random.split(jax.random.key(seed + 100), len(leaves))
    drawn = [
        jax.random.normal(key, leaf.shape).astype(leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, drawn)


def _is_floating(argument: Any) -> bool:
    return argument is not None and all(
        jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(argument)
    )


def interpreted(function: Callable[[], Any], **overrides: dict[str, int]) -> Any:
    """`function()` with the Pallas kernels run step by step; tiles may be given by kernel name."""
    tiles = tuple(
        (name, backend.Tiles.parse({"num_warps": 1, "num_stages": 1, **sizes}))
        for name, sizes in overrides.items()
    )
    with backend.compile_for(backend.Target("interpreter", interpret=True, overrides=tiles)):
        return function()


def assert_close(actual: Any, expected: Any, *, reduction: int, dtype: Any = jnp.float32) -> None:
    """Equal up to rounding.

    A sum of n products whose roundings are independent is off by about sqrt(n) units in the last
    place of its largest partial sums; the largest entry of the result stands for those. The factor
    of 4 covers the few roundings around the sum. Every entry must be finite, so that a NaN left
    from an output nobody wrote, or read from beyond a tile, is an error.
    """
    actual_leaves, expected_leaves = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert len(actual_leaves) == len(expected_leaves)
    for i, pair in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
        a, b = (np.asarray(leaf, np.float64) for leaf in pair)
        assert a.shape == b.shape, i
        assert np.isfinite(a).all(), f"leaf {i} has entries that are not finite"
        unit = float(jnp.finfo(dtype).eps) * max(1.0, float(np.abs(b).max(initial=0.0)))
        worst = float(np.abs(a - b).max(initial=0.0))
        assert worst <= 4 * unit * reduction**0.5, f"leaf {i}: off by {worst / unit:.1f} units"


def random(seed: int, *shapes: tuple[int, ...], dtype: Any = jnp.float32) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]
