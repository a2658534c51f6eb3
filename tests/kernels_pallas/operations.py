"""Every operation with arguments for any number of tokens, and what the two forms make of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from kernels_pallas.attention import causal_attention
from kernels_pallas.cca import CCAWeights, cca_mix
from kernels_pallas.cca_chunk import CCAState, cca_mix_chunk
from kernels_pallas.cross_entropy import linear_cross_entropy
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.head_statistics import token_log_probabilities
from kernels_pallas.norm import scaled_residual_norm
from tests.kernels_pallas.compare import interpreted, value_and_gradients

FORMS = ("xla", "pallas")


def drawn(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def mix_weights(dtype: Any) -> CCAWeights:
    shapes = ((16, 2), (16,), (16, 8, 2), (16,), (1,), (4,))
    return CCAWeights(*(drawn(*shape, dtype=dtype) for shape in shapes))


def mix_arguments(batch: int, seq: int, dtype: Any) -> list[Any]:
    streams = [drawn(batch, seq, width, dtype=dtype) for width in (16, 4, 4)]
    return [*streams, mix_weights(dtype), *(drawn(batch, seq, 2, dtype=dtype) for _ in range(2))]


def attention_arguments(batch: int, queries: int, dtype: Any) -> list[Any]:
    kv = (batch, queries + 1, 1, 8)
    return [drawn(*shape, dtype=dtype) for shape in ((batch, queries, 2, 8), kv, kv)]


def head_arguments(tokens: int, dtype: Any) -> list[Any]:
    floats = [drawn(*shape, dtype=dtype) for shape in ((tokens, 6), (9, 6), (9,))]
    return [*floats, np.arange(tokens, dtype=np.int32)]


def mix_of(function: Callable[..., Any], *arguments: Any, implementation: str) -> Any:
    *rest, cos, sin = arguments
    return function(*rest, cos=cos, sin=sin, implementation=implementation)


def norm_of(*arguments: Any, implementation: str) -> Any:
    names = ("hidden_bias", "hidden_scale", "residual_bias", "residual_scale", "norm_weight")
    vectors = dict(zip(names, arguments[2:], strict=True))
    return bare(scaled_residual_norm)(
        *arguments[:2], **vectors, epsilon=1e-5, implementation=implementation
    )


def expert_arguments(tokens: int, dtype: Any) -> list[Any]:
    shapes = ((tokens, 4), (tokens,), (3, 4, 4), (3, 4, 2))
    x, *rest = [drawn(*shape, dtype=dtype) for shape in shapes]
    return [x, np.arange(tokens, dtype=np.int32) % 4, *rest]


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without the annotation checks of tests: NumPy's arrays are no `jax.Array`."""
    return getattr(function, "__wrapped__", function)


def chunk_arguments(batch: int, seq: int, dtype: Any) -> list[Any]:
    *streams, weights, cos, sin = mix_arguments(batch, seq, dtype)
    state = CCAState(drawn(batch, 2, 16, dtype=dtype), drawn(batch, 4, dtype=dtype))
    return [*streams, weights, state, cos, sin]


# By name: the operation, and its arguments for a number of tokens and a dtype.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[int, Any], list[Any]]]] = {
    "causal": (bare(causal_attention), functools.partial(attention_arguments, 1)),
    "flash": (bare(flash_attention), functools.partial(attention_arguments, 1)),
    "cca": (functools.partial(mix_of, bare(cca_mix)), functools.partial(mix_arguments, 1)),
    "chunk": (
        functools.partial(mix_of, bare(cca_mix_chunk)),
        functools.partial(chunk_arguments, 1),
    ),
    "cross entropy": (
        bare(linear_cross_entropy),
        lambda t, d: [*head_arguments(t, d), drawn(t, dtype=d)],
    ),
    "log probabilities": (bare(token_log_probabilities), head_arguments),
    "experts": (functools.partial(bare(expert_mlp), dispatch="grouped"), expert_arguments),
    "norm": (norm_of, lambda t, d: [drawn(t, 8, dtype=d)] * 2 + [drawn(8, dtype=d)] * 5),
}


def in_form(form: str, function: Callable[..., Any], arguments: list[Any]) -> Any:
    run = functools.partial(function, implementation=form)
    return interpreted(lambda: value_and_gradients(run, arguments))


def assert_agree(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """The same numbers in the same dtypes, NaN where there is NaN."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)
