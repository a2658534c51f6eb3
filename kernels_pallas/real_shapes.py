"""The operations at the sizes of ZAYA1-8B, forward and backward, as the offline compile needs them.

Shapes only, no arrays: every case is a function and the arguments to trace it with. The products
say so, because a product without matrix instructions would be a fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.cca import CCAWeights, cca_mix
from kernels_pallas.cross_entropy import linear_cross_entropy
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.newton_schulz import newton_schulz
from kernels_pallas.norm import scaled_residual_norm

TOKENS, HIDDEN = 4096, 2048
QUERY_HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128
EXPERTS, EXPERT_WIDTH = 16, 2048
VOCABULARY = 262_272


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation to compile.

    Attributes:
      operation: its name.
      function: differentiable; its kernels are those of the forward and the backward pass.
      arguments: shapes and dtypes.
      products: kernels that must hold matrix instructions.
      differentiate: which arguments, or empty for a forward pass only.
    """

    operation: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    products: tuple[str, ...]
    differentiate: tuple[int, ...]

    def in_float32(self) -> Case:
        """The same on float32 arrays where the arguments are bfloat16."""

        def widened(a: Any) -> Any:
            return _array(*a.shape, dtype=jnp.float32) if a.dtype == jnp.bfloat16 else a

        return dataclasses.replace(self, arguments=jax.tree.map(widened, self.arguments))

    def traced(self) -> Callable[..., Any]:
        """The function together with its gradients for random cotangents."""
        if not self.differentiate:
            return self.function

        def both(*arguments: Any) -> Any:
            def loss(*chosen: Any) -> jax.Array:
                full = list(arguments)
                for position, value in zip(self.differentiate, chosen, strict=True):
                    full[position] = value
                outputs = jax.tree.leaves(self.function(*full))
                sums = [jnp.sum(jnp.sin(o.astype(jnp.float32))) for o in outputs]
                return jnp.sum(jnp.stack(sums))

            return jax.grad(loss, tuple(range(len(self.differentiate))))(
                *(arguments[i] for i in self.differentiate)
            )

        return both


def _array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _norm() -> Case:
    def function(hidden: Any, residual: Any, *vectors: Any) -> Any:
        names = ("hidden_bias", "hidden_scale", "residual_bias", "residual_scale", "norm_weight")
        return scaled_residual_norm(
            hidden,
            residual,
            epsilon=1e-5,
            norm_dtype=jnp.bfloat16,
            **dict(zip(names, vectors, strict=True)),
        )

    vector = _array(HIDDEN, dtype=jnp.float32)
    stream = _array(TOKENS, HIDDEN, dtype=jnp.float32)
    arguments = (_array(TOKENS, HIDDEN), stream, *(vector,) * 5)
    return Case("norm", function, arguments, (), tuple(range(7)))


def _attention(name: str, queries: int, *, packed: bool) -> Case:
    def function(query: Any, key: Any, value: Any, segment_ids: Any = None) -> Any:
        out, _ = flash_attention(query, key, value, segment_ids=segment_ids)
        return out

    key = _array(1, queries, KV_HEADS, HEAD_DIM)
    arguments = [_array(1, queries, QUERY_HEADS, HEAD_DIM), key, key]
    if packed:
        arguments.append(_array(1, queries, dtype=jnp.int32))
    kernels = ("attention_forward", "attention_dq", "attention_dkv")
    return Case(name, function, tuple(arguments), kernels, (0, 1, 2))


def _cca() -> Case:
    channels, half, rotary = (QUERY_HEADS + KV_HEADS) * HEAD_DIM, KV_HEADS * HEAD_DIM // 2, 32

    def function(query_key: Any, current: Any, delayed: Any, weights: Any, cos: Any, sin: Any):
        return cca_mix(query_key, current, delayed, weights, cos=cos, sin=sin)

    shapes = ((channels, 2), (channels,), (channels, HEAD_DIM, 2), (channels,), (KV_HEADS,))
    make: Any = CCAWeights  # of shapes instead of arrays
    weights = make(*(_array(*shape, dtype=jnp.float32) for shape in shapes), None)
    angles = _array(1, TOKENS, rotary, dtype=jnp.float32)
    value = _array(1, TOKENS, half)
    arguments = (_array(1, TOKENS, channels), value, value, weights, angles, angles)
    kernels = ("cca_forward", "cca_dy", "cca_du", "cca_dweights")
    return Case("cca", function, arguments, kernels, (0, 1, 2, 3))


def _experts() -> Case:
    def function(x: Any, class_index: Any, gate: Any, gate_up: Any, down: Any) -> Any:
        return expert_mlp(x, class_index, gate, gate_up, down, dispatch="grouped")

    arguments = (
        _array(TOKENS, HIDDEN),
        _array(TOKENS, dtype=jnp.int32),
        _array(TOKENS, dtype=jnp.float32),
        _array(EXPERTS, 2 * EXPERT_WIDTH, HIDDEN, dtype=jnp.float32),
        _array(EXPERTS, HIDDEN, EXPERT_WIDTH, dtype=jnp.float32),
    )
    names = ("gate_up", "down", "dgate_up", "dx", "dweights")
    kernels = tuple(f"expert_{name}" for name in names)
    return Case("experts", function, arguments, kernels, (0, 2, 3, 4))


def _cross_entropy() -> Case:
    def function(hidden: Any, weight: Any, targets: Any, token_weights: Any) -> Any:
        return linear_cross_entropy(hidden, weight, None, targets, token_weights).loss_sum

    arguments = (
        _array(TOKENS, HIDDEN),
        _array(VOCABULARY, HIDDEN, dtype=jnp.float32),
        _array(TOKENS, dtype=jnp.int32),
        _array(TOKENS, dtype=jnp.float32),
    )
    kernels = ("head_statistics", "head_dlogits")
    return Case("cross_entropy", function, arguments, kernels, (0, 1))


def _decode() -> Case:
    cache = _array(64, 8 * TOKENS, KV_HEADS, HEAD_DIM)
    query = _array(64, 1, QUERY_HEADS, HEAD_DIM)
    arguments = (query, cache, cache, _array(64, dtype=jnp.int32))
    return Case("attention_decode", attention_decode, arguments, ("attention_decode",), ())


def _newton_schulz() -> Case:
    arguments = (_array(EXPERTS, HIDDEN, 2 * EXPERT_WIDTH, dtype=jnp.float32),)
    kernels = ("symmetric_product", "matrix_step")
    return Case("newton_schulz", newton_schulz, arguments, kernels, ())


def cases() -> tuple[Case, ...]:
    """Every operation."""
    return (
        _norm(),
        _attention("attention", TOKENS, packed=False),
        _attention("attention_packed", TOKENS, packed=True),
        _cca(),
        _experts(),
        _decode(),
        _cross_entropy(),
        _newton_schulz(),
    )
