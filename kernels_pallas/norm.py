"""RMSNorm and the scaled residual addition, in float32.

    rms_norm(x)           = x / sqrt(mean(x^2) + epsilon) * weight
    scaled_residual(h, r) = (h + hidden_bias) * hidden_scale + (r + residual_bias) * residual_scale

The bias comes before the scale on both branches (arXiv 2605.05365, Sec. II; released code). All
operations are bound by memory: a few FLOPs for each element read and written. The addition and the
norm of its result together have a Pallas form (``gpu/norm.py``) that touches the stream once.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels_pallas import backend, expect
from kernels_pallas.gpu import norm as gpu


def rms_norm(
    x: Float[Array, "*batch channels"],
    weight: Float[Array, "channels"],
    *,
    epsilon: float,
) -> Float[Array, "*batch channels"]:
    """RMSNorm over the last axis; computed and returned in float32 whatever the input's dtype.

    Raises:
      KernelError: for shapes that do not fit together.
    """
    x, weight = expect.floats("rms_norm", x=x, weight=weight)
    expect.axes("rms_norm", weight=(weight, "channels"))
    expect.shapes("rms_norm", x=(x, (*x.shape[:-1], weight.shape[0])))
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + epsilon) * _per_channel(weight, x)


def scaled_residual(
    hidden: Float[Array, "*batch channels"],
    residual: Float[Array, "*batch channels"],
    *,
    hidden_bias: Float[Array, "channels"],
    hidden_scale: Float[Array, "channels"],
    residual_bias: Float[Array, "channels"],
    residual_scale: Float[Array, "channels"],
) -> Float[Array, "*batch channels"]:
    """The residual stream after a block, float32. `hidden` is the block's output.

    Raises:
      KernelError: for shapes that do not fit together.
    """
    hidden, residual, *vectors = _arrays(
        "scaled_residual",
        hidden,
        residual,
        hidden_bias=hidden_bias,
        hidden_scale=hidden_scale,
        residual_bias=residual_bias,
        residual_scale=residual_scale,
    )
    hidden_bias, hidden_scale, residual_bias, residual_scale = vectors
    hidden = hidden.astype(jnp.float32)
    residual = residual.astype(jnp.float32)
    scaled_hidden = (hidden + _per_channel(hidden_bias, hidden)) * _per_channel(
        hidden_scale, hidden
    )
    scaled_skip = (residual + _per_channel(residual_bias, residual)) * _per_channel(
        residual_scale, residual
    )
    return scaled_hidden + scaled_skip


def scaled_residual_norm(
    hidden: Float[Array, "*batch channels"],
    residual: Float[Array, "*batch channels"],
    *,
    hidden_bias: Float[Array, "channels"],
    hidden_scale: Float[Array, "channels"],
    residual_bias: Float[Array, "channels"],
    residual_scale: Float[Array, "channels"],
    norm_weight: Float[Array, "channels"],
    epsilon: float,
    norm_dtype: Any = jnp.float32,
    implementation: backend.Implementation = "auto",
) -> tuple[Float[Array, "*batch channels"], Float[Array, "*batch channels"]]:
    """`scaled_residual`, float32, and its `rms_norm` cast to `norm_dtype`.

    Rows do not depend on each other. Gradients of the vectors are sums over all rows, so a row that
    is not finite reaches them, in both forms.

    Raises:
      KernelError: for shapes that do not fit together, and where the Pallas form is asked for, or
        due, and cannot run.
    """
    given = gpu.Vectors(hidden_bias, hidden_scale, residual_bias, residual_scale, norm_weight)
    hidden, residual, *arrays = _arrays("scaled_residual_norm", hidden, residual, **given._asdict())
    channels, vectors = hidden.shape[-1], gpu.Vectors(*arrays)
    refusals = [
        f"channels = {channels} is more than {_MOST_CHANNELS}"
        if channels > _MOST_CHANNELS
        else None,
        *(_float_refusal(name, a) for name, a in (("hidden", hidden), ("residual", residual))),
    ]
    target = backend.choose(implementation, "scaled_residual_norm", refusals)
    if target is None:
        stream = scaled_residual(hidden, residual, **_without_norm(vectors))
        return stream, rms_norm(stream, vectors.norm_weight, epsilon=epsilon).astype(norm_dtype)
    if hidden.size == 0:
        return jnp.zeros(hidden.shape, jnp.float32), jnp.zeros(hidden.shape, norm_dtype)
    flat = (-1, channels)  # [*batch, channels] -> [rows, channels]
    stream, norm = _fused(
        epsilon,
        jnp.dtype(norm_dtype),
        target,
        hidden.reshape(flat),
        residual.reshape(flat),
        gpu.Vectors(*(v.astype(jnp.float32) for v in vectors)),
    )
    return stream.reshape(hidden.shape), norm.reshape(hidden.shape)


def _arrays(operation: str, hidden: Any, residual: Any, **vectors: Any) -> list[Array]:
    """Both branches and the vectors as JAX arrays, found to fit together."""
    names = ("hidden", "residual", *vectors)
    arrays = expect.floats(operation, hidden=hidden, residual=residual, **vectors)
    present = dict(zip(names[2:], arrays[2:], strict=True))
    expect.axes(operation, **{name: (vector, "channels") for name, vector in present.items()})
    leading = "rows " * (jnp.ndim(arrays[0]) - 1) if arrays[0] is not None else ""
    expect.axes(
        operation, **{n: (a, f"{leading}channels") for n, a in zip(names, arrays[:2], strict=False)}
    )
    channels = arrays[0].shape[-1]
    expect.shapes(
        operation,
        residual=(arrays[1], arrays[0].shape),
        **{name: (vector, (channels,)) for name, vector in present.items()},
    )
    return arrays


_MOST_CHANNELS = 8192  # a whole row is held in registers


def _float_refusal(name: str, a: Array) -> str | None:
    if a.dtype in (jnp.float32, jnp.bfloat16):
        return None
    return f"{name} has dtype {a.dtype}, not float32 or bfloat16"


def _without_norm(vectors: gpu.Vectors) -> dict[str, Array]:
    return {name: value for name, value in vectors._asdict().items() if name != "norm_weight"}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _fused(
    epsilon: float,
    norm_dtype: Any,
    target: backend.Target,
    hidden: Array,
    residual: Array,
    vectors: gpu.Vectors,
) -> tuple[Array, Array]:
    return gpu.forward(
        hidden, residual, vectors, epsilon=epsilon, norm_dtype=norm_dtype, target=target
    )


def _fused_forward(
    epsilon: float,
    norm_dtype: Any,
    target: backend.Target,
    hidden: Array,
    residual: Array,
    vectors: gpu.Vectors,
) -> tuple:
    outputs = _fused(epsilon, norm_dtype, target, hidden, residual, vectors)
    return outputs, (hidden, residual, vectors)


def _fused_backward(
    epsilon: float, norm_dtype: Any, target: backend.Target, saved: tuple, cotangents: tuple
) -> tuple:
    del norm_dtype
    return gpu.backward(*saved, *cotangents, epsilon=epsilon, target=target)


_fused.defvjp(_fused_forward, _fused_backward)


def _per_channel(vector: Array, like: Array) -> Array:
    """A float32 vector with the leading axes that adding it to `like` needs."""
    return vector.astype(jnp.float32).reshape((1,) * (like.ndim - 1) + vector.shape)
