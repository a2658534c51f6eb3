"""The mixing step of compressed convolutional attention (CCA): projections in, q, k and v out.

For token t of a segment, with u the packed query and key projections (query heads first):

    mean_q = (q_t + its KV head of k_t) / 2             per query head
    mean_k = mean of mean_q over the query heads of the group
    c_t    = sum_i depthwise[:, W0-1-i] * u_{t-i} + depthwise_bias
    d_t    = sum_j grouped[:, :, W1-1-j] @ c_{t-j} + grouped_bias      one block per head
    q, k   = l2_normalise(d + mean) * sqrt(head_dim);  k *= temperature;  RoPE
    v_t    = [current_t, delayed_{t-1}]                 split by flat channel, then into heads

Before the start of a segment u is zero, so c there is the depthwise bias and the delayed value is
the projection of zero, i.e. its bias. Nothing crosses from one segment to the next.

Sources: arXiv 2510.04476, listing 1; arXiv 2605.05365, appendix C (linear temperature).

Cost per token: 2 * (channels * W0 + channels * head_dim * W1) FLOPs against
2 * channels * itemsize bytes for q and k alone, so at the released sizes (head_dim 128, W1 = 2)
the grouped convolution is bound by compute and everything else by memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect
from kernels_pallas.gpu import cca_mix as gpu

# Smaller than any squared norm that matters, larger than 0: a zero vector stays zero, never NaN.
_NORM_EPSILON = 1e-12


class CCAWeights(NamedTuple):
    """The mixing step's parameters in the released layout; the last tap is the newest token."""

    depthwise: Float[Array, "channels depthwise_width"]
    depthwise_bias: Float[Array, "channels"]
    grouped: Float[Array, "channels head_dim grouped_width"]  # (out, in of the same head, tap)
    grouped_bias: Float[Array, "channels"]
    temperature: Float[Array, "kv_heads"]
    delayed_value_bias: Float[Array, "half_value"] | None  # bias of the delayed projection


def cca_mix(
    query_key: Float[Array, "batch seq channels"],
    value_current: Float[Array, "batch seq half_value"],
    value_delayed: Float[Array, "batch seq half_value"],
    weights: CCAWeights,
    *,
    cos: Float[Array, "batch seq half_rotary"],
    sin: Float[Array, "batch seq half_rotary"],
    segment_ids: Int[Array, "batch seq"] | None = None,
    implementation: backend.Implementation = "auto",
) -> tuple[
    Float[Array, "batch seq query_heads head_dim"],
    Float[Array, "batch seq kv_heads head_dim"],
    Float[Array, "batch seq kv_heads head_dim"],
]:
    """Attention-ready queries, keys and values.

    Args:
      query_key: projected queries then keys, before the convolutions.
      value_current: value channels of this token.
      value_delayed: value channels that the *next* token will use.
      weights: see `CCAWeights`.
      cos: cosines of the RoPE angles, float32. No gradient reaches the angles.
      sin: sines of the RoPE angles, float32.
      segment_ids: packed segments; None means one segment per row. Equal ids must stand together:
        the XLA form compares ids, the kernels take each run of equal ids for a segment.
      implementation: see `kernels_pallas.backend`.

    Returns:
      Queries, keys and values in the dtype of `query_key`. Convolution sums, means, norms and
      RoPE are float32. Nothing of a segment, finite or not, reaches the outputs of another or the
      gradients of its streams; gradients of weights are sums over all tokens.

    Raises:
      KernelError: for arrays that do not fit together, and where the Pallas form is asked for, or
        due, and cannot run.
    """
    streams, weights, cos, sin, segment_ids = fitting(
        "cca_mix", (query_key, value_current, value_delayed), weights, cos, sin, segment_ids
    )
    query_key = streams[0]
    refusals = gpu.refusals(*streams, weights)
    target = backend.choose(implementation, "cca_mix", refusals)
    if target is not None and query_key.size:
        return gpu.mix(target, gpu.prepare(*streams, weights, cos, sin, segment_ids))
    return _mix_xla(*streams, weights, cos, sin, segment_ids)


Arguments = tuple[tuple[Array, Array, Array], CCAWeights, Array, Array, Array | None]


def fitting(
    operation: str,
    streams: tuple[Any, Any, Any],
    weights: CCAWeights,
    cos: Any,
    sin: Any,
    segment_ids: Any,
) -> Arguments:
    """The arguments as JAX arrays, found to belong together; no gradient reaches the angles."""
    names = ("query_key", "value_current", "value_delayed")
    query_key, value_current, value_delayed = expect.floats(
        operation, **dict(zip(names, streams, strict=True))
    )
    weights = CCAWeights(*expect.floats(operation, **weights._asdict()))
    cos, sin = jax.lax.stop_gradient(tuple(expect.floats(operation, cos=cos, sin=sin)))
    (segment_ids,) = expect.integers(operation, segment_ids=segment_ids)
    _expect_fit(
        operation, (query_key, value_current, value_delayed), weights, cos, sin, segment_ids
    )
    return (query_key, value_current, value_delayed), weights, cos, sin, segment_ids


def _expect_fit(
    operation: str,
    streams: tuple[Array, Array, Array],
    weights: CCAWeights,
    cos: Array,
    sin: Array,
    segment_ids: Array | None,
) -> None:
    """Refuse values, weights, angles and segments that do not belong to the projections."""
    query_key, value_current, value_delayed = streams
    expect.axes(
        operation,
        query_key=(query_key, "batch seq channels"),
        value_current=(value_current, "batch seq half_value"),
        value_delayed=(value_delayed, "batch seq half_value"),
        cos=(cos, "batch seq half_rotary"),
        sin=(sin, "batch seq half_rotary"),
        depthwise=(weights.depthwise, "channels depthwise_width"),
        depthwise_bias=(weights.depthwise_bias, "channels"),
        grouped=(weights.grouped, "channels head_dim grouped_width"),
        grouped_bias=(weights.grouped_bias, "channels"),
        temperature=(weights.temperature, "kv_heads"),
    )
    channels, head_dim, _ = weights.grouped.shape
    tokens, (taps, half) = query_key.shape[:2], (weights.depthwise.shape[1], cos.shape[2])
    kv_heads = weights.temperature.shape[0]
    value = (*tokens, kv_heads * head_dim // 2)
    expect.shapes(
        operation,
        query_key=(query_key, (*tokens, channels)),
        value_current=(value_current, value),
        value_delayed=(value_delayed, value),
        depthwise=(weights.depthwise, (channels, taps)),
        depthwise_bias=(weights.depthwise_bias, (channels,)),
        grouped_bias=(weights.grouped_bias, (channels,)),
        delayed_value_bias=(weights.delayed_value_bias, (kv_heads * head_dim // 2,)),
        cos=(cos, (*tokens, min(half, head_dim // 2))),
        sin=(sin, cos.shape),
        segment_ids=(segment_ids, tokens),
    )
    group, ragged = divmod(channels, kv_heads * head_dim)
    if kv_heads * head_dim % 2:
        raise backend.KernelError(
            f"{operation}: {kv_heads} key heads of {head_dim} channels are an odd number of value "
            "channels, of which half are delayed; must be even"
        )
    if ragged or group < 2:
        raise backend.KernelError(
            f"{operation}: shapes do not fit together: {channels} channels are not whole groups of "
            f"query heads and {kv_heads} key heads of {head_dim} channels"
        )


def _mix_xla(
    query_key: Array,
    value_current: Array,
    value_delayed: Array,
    weights: CCAWeights,
    cos: Array,
    sin: Array,
    segment_ids: Array | None,
) -> tuple[Array, Array, Array]:
    """The XLA form of `cca_mix`."""
    dtype = query_key.dtype
    batch, seq, channels = query_key.shape
    head_dim = weights.grouped.shape[1]
    kv_heads = weights.temperature.shape[0]
    heads = channels // head_dim
    query_heads = heads - kv_heads

    convolved = _grouped_convolution(
        _depthwise_convolution(query_key, weights, segment_ids), weights, segment_ids
    )
    # [batch, seq, channels] -> [batch, seq, heads, head_dim]
    projected = query_key.astype(jnp.float32).reshape(batch, seq, heads, head_dim)
    mean_query, mean_key = _query_key_means(projected, kv_heads)
    query = convolved[:, :, :query_heads] + mean_query
    key = convolved[:, :, query_heads:] + mean_key

    temperature = weights.temperature.astype(jnp.float32)[None, None, :, None]
    query = apply_rope(_scale_to_unit_variance(query), cos, sin)
    key = apply_rope(_scale_to_unit_variance(key) * temperature, cos, sin)

    value = jnp.concatenate(
        [value_current, _delay(value_delayed, weights.delayed_value_bias, segment_ids)], axis=-1
    )
    # [batch, seq, kv_heads * head_dim] -> [batch, seq, kv_heads, head_dim]
    value = value.reshape(batch, seq, kv_heads, head_dim)
    return query.astype(dtype), key.astype(dtype), value.astype(dtype)


def apply_rope(
    x: Float[Array, "batch seq heads head_dim"],
    cos: Float[Array, "batch seq half_rotary"],
    sin: Float[Array, "batch seq half_rotary"],
) -> Float[Array, "batch seq heads head_dim"]:
    """Rotates the first 2 * half_rotary channels, pairing channel i with i + half_rotary."""
    half = cos.shape[-1]
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    first, second, passed = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate(
        [first * cos - second * sin, second * cos + first * sin, passed], axis=-1
    )


def shift_in_segment(
    x: Float[Array, "batch seq channels"],
    distance: int,
    fill: Float[Array, "channels"] | None,
    segment_ids: Int[Array, "batch seq"] | None,
) -> Float[Array, "batch seq channels"]:
    """The sequence `distance` tokens ago; `fill` (None is zero) where that precedes the segment."""
    if distance == 0:
        return x
    seq = x.shape[1]
    fill_row = jnp.zeros_like(x[:1, :1]) if fill is None else fill.astype(x.dtype)[None, None, :]
    head = jnp.broadcast_to(fill_row, (x.shape[0], min(distance, seq), x.shape[2]))
    shifted = jnp.concatenate([head, x[:, : max(seq - distance, 0)]], axis=1)
    if segment_ids is None:
        return shifted
    earlier = jnp.pad(segment_ids, ((0, 0), (distance, 0)), constant_values=-1)[:, :seq]
    return jnp.where((earlier == segment_ids)[:, :, None], shifted, fill_row)


def _depthwise_convolution(
    query_key: Array, weights: CCAWeights, segment_ids: Array | None
) -> Array:
    """Float32 result of the per-channel convolution, [batch, seq, channels]."""
    width = weights.depthwise.shape[1]
    taps = weights.depthwise.astype(jnp.float32)
    total = weights.depthwise_bias.astype(jnp.float32)[None, None, :]
    for distance in range(width):
        earlier = shift_in_segment(query_key, distance, None, segment_ids).astype(jnp.float32)
        total = total + earlier * taps[:, width - 1 - distance][None, None, :]
    return total.astype(query_key.dtype)


def _grouped_convolution(
    mixed: Array, weights: CCAWeights, segment_ids: Array | None
) -> Float[Array, "batch seq heads head_dim"]:
    """Float32 result of the per-head convolution of the depthwise convolution's output."""
    batch, seq, channels = mixed.shape
    _, head_dim, width = weights.grouped.shape
    heads = channels // head_dim
    # [channels, head_dim, width] -> [heads, out, in, width]
    taps = weights.grouped.reshape(heads, head_dim, head_dim, width).astype(mixed.dtype)
    total = weights.grouped_bias.astype(jnp.float32).reshape(1, 1, heads, head_dim)
    for distance in range(width):
        earlier = shift_in_segment(mixed, distance, weights.depthwise_bias, segment_ids)
        # [batch, seq, channels] -> [batch, seq, heads, head_dim]
        earlier = earlier.reshape(batch, seq, heads, head_dim)
        total = total + jnp.einsum(
            "bshi,hoi->bsho",
            earlier,
            taps[..., width - 1 - distance],
            preferred_element_type=jnp.float32,
        )
    return total


def _query_key_means(projected: Array, kv_heads: int) -> tuple[Array, Array]:
    """The residual paths around the convolutions, from [batch, seq, heads, head_dim]."""
    batch, seq, heads, head_dim = projected.shape
    query_heads = heads - kv_heads
    # query heads [batch, seq, query_heads, head_dim] -> [batch, seq, kv_heads, group, head_dim]
    query = projected[:, :, :query_heads].reshape(
        batch, seq, kv_heads, query_heads // kv_heads, head_dim
    )
    key = projected[:, :, query_heads:, None, :]
    mean_query = 0.5 * (query + key)
    mean_key = jnp.mean(mean_query, axis=3)
    return mean_query.reshape(batch, seq, query_heads, head_dim), mean_key


def _scale_to_unit_variance(x: Array) -> Array:
    """L2-normalises the last axis to length sqrt(head_dim)."""
    square_sum = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * (jax.lax.rsqrt(square_sum + _NORM_EPSILON) * x.shape[-1] ** 0.5)


def _delay(value: Array, bias: Array | None, segment_ids: Array | None) -> Array:
    return shift_in_segment(value, 1, bias, segment_ids)
