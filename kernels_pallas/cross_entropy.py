"""Language-model head and next-token cross entropy in one pass, without the logits.

Definition (``definition`` below, which does build all logits)::

    logits[t]  = hidden[t] @ weight.T + bias                                   float32
    loss_sum   = sum_t w[t] * (lse(logits[t]) - logits[t, target[t]] + z * lse(logits[t])**2)

The tokens are cut into chunks and one ``lax.scan`` visits them, so that logits exist for one chunk
at a time: float32 [chunk, V]. No array [T, V] of any dtype is made, forward or backward. When a
gradient is asked for, the forward pass already turns each chunk's logits into their gradient and
multiplies it into ``hidden`` and ``weight``; what the backward pass adds is the scalar cotangent.

Shapes: hidden [T, H], weight [V, H], bias [V], targets and token weights [T].
Accumulation: products, softmax and the weight's gradient in float32.
FLOPs: 2 T H V for the value alone, 6 T H V with gradients (8 T H V if logits were recomputed).
Bytes: weight and its float32 gradient once per chunk, logits of one chunk a few times. Bound by the
matrix products when the chunk has hundreds of tokens.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect, head_statistics


class LinearCrossEntropy(NamedTuple):
    """Sums over tokens, float32 scalars. Divide by ``weight_sum`` for means."""

    loss_sum: Float[Array, ""]  # the objective: weighted cross entropy plus z-loss
    z_loss_sum: Float[Array, ""]  # the z-loss contained in loss_sum; a report, no gradient
    correct_sum: Float[Array, ""]  # weight of tokens whose target beats all others; no gradient
    weight_sum: Float[Array, ""]


def _target_column(targets: jax.Array, used: jax.Array, vocab: int) -> jax.Array:
    """Column of each target's logit, int32 [T, 1]; out of range (read as NaN) for a bad id."""
    column = jnp.where(used, targets, 0)
    return jnp.where(column < 0, vocab, column)[:, None]  # a negative index would wrap


def definition(
    hidden: Float[Array, "tokens hidden"],
    weight: Float[Array, "vocab hidden"],
    bias: Float[Array, " vocab"] | None,
    targets: Int[Array, " tokens"],
    token_weights: Float[Array, " tokens"],
    *,
    z_loss_weight: float = 0.0,
) -> LinearCrossEntropy:
    """The same sums from all logits at once: the specification, for tests and small inputs."""
    used = token_weights != 0
    hidden = jnp.where(used[:, None], hidden, 0)
    logits = hidden.astype(jnp.float32) @ weight.astype(jnp.float32).T
    logits = logits if bias is None else logits + bias.astype(jnp.float32)[None, :]
    log_sum = jax.nn.logsumexp(logits, axis=1)
    column = _target_column(targets, used, weight.shape[0])
    target_logit = jnp.take_along_axis(logits, column, axis=1, mode="fill")[:, 0]
    z_loss = z_loss_weight * log_sum**2
    is_target = jnp.arange(logits.shape[1])[None, :] == column
    correct = target_logit > jnp.where(is_target, -jnp.inf, logits).max(axis=1)
    return LinearCrossEntropy(
        loss_sum=jnp.sum(jnp.where(used, token_weights * (log_sum - target_logit + z_loss), 0.0)),
        z_loss_sum=lax.stop_gradient(jnp.sum(token_weights * z_loss)),
        correct_sum=lax.stop_gradient(jnp.sum(token_weights * correct)),
        weight_sum=jnp.sum(token_weights),
    )


def linear_cross_entropy(
    hidden: Float[Array, "tokens hidden"],
    weight: Float[Array, "vocab hidden"],
    bias: Float[Array, " vocab"] | None,
    targets: Int[Array, " tokens"],
    token_weights: Float[Array, " tokens"],
    *,
    z_loss_weight: float = 0.0,
    chunk_size: int = 512,
    implementation: backend.Implementation = "auto",
) -> LinearCrossEntropy:
    """Cross entropy of ``hidden @ weight.T + bias`` against ``targets``, chunk by chunk.

    Args:
      hidden: final states, float32 or bfloat16; the products run in this dtype.
      weight: output embedding; cast to ``hidden.dtype`` for the products, its gradient is summed in
        float32 and returned in its own dtype.
      bias: one value per vocabulary entry, or None.
      targets: token ids. Ids outside ``0..vocab-1`` may stand where the weight is 0 (say -100);
        anywhere else they are refused, or make the loss NaN where they or the weights are traced.
      token_weights: float32 weight of each token in the sums; differentiable. A token of weight 0
        is ignored, in its own gradient too; its state may hold anything, NaN as well.
      z_loss_weight: factor of the squared log-partition in each token's loss; a Python number.
      chunk_size: most tokens whose logits exist at once. The sums do not depend on it beyond
        rounding. The Pallas form has tiles instead.
      implementation: see `kernels_pallas.backend`.

    Returns:
      Sums over tokens. ``loss_sum`` contains the z-loss and carries the gradients. A target counts
      as correct when its logit is strictly the largest, so a tie is no hit.

    Raises:
      KernelError: for arrays that do not fit together, ``chunk_size < 1``, and where the Pallas
        form is asked for, or due, and cannot run.
    """
    if chunk_size < 1:
        raise backend.KernelError(
            f"linear_cross_entropy: chunk_size = {chunk_size}: must be at least 1"
        )
    hidden, weight, bias, token_weights = expect.floats(
        "linear_cross_entropy", hidden=hidden, weight=weight, bias=bias, token_weights=token_weights
    )
    (targets,) = expect.integers("linear_cross_entropy", targets=targets)
    head_statistics.expect_fit("linear_cross_entropy", hidden, weight, bias, targets)
    expect.axes("linear_cross_entropy", token_weights=(token_weights, "tokens"))
    expect.shapes("linear_cross_entropy", token_weights=(token_weights, hidden.shape[:1]))
    counted, ids = expect.known(token_weights), expect.known(targets)
    if counted is not None and ids is not None:
        last = weight.shape[0] - 1
        expect.within("linear_cross_entropy", targets=(ids[counted != 0], 0, last))
    refusals = head_statistics.refusals(hidden, weight)
    target = backend.choose(implementation, "linear_cross_entropy", refusals)
    hidden = jnp.where((token_weights != 0)[:, None], hidden, 0)
    if target is not None and hidden.size:  # of no tokens there is nothing to run a kernel for
        found = head_statistics.head_statistics(target, hidden, weight, bias, targets)
        return _sums(found, token_weights, float(z_loss_weight))
    return _fused(float(z_loss_weight), chunk_size, hidden, weight, bias, targets, token_weights)


def _sums(
    found: head_statistics.Statistics, token_weights: jax.Array, z_loss_weight: float
) -> LinearCrossEntropy:
    """The sums from what the kernels say of every token's logits."""
    used = token_weights != 0
    w = token_weights.astype(jnp.float32)
    # The inner select keeps an ignored token's NaN out of the gradient as well.
    own = jnp.where(used, found.target, 0.0)
    z_loss = z_loss_weight * jnp.square(found.log_sum)
    loss = jnp.where(used, found.log_sum - own + z_loss, 0.0)
    correct = jnp.where(used & (found.target > found.best_other), w, 0.0)
    return LinearCrossEntropy(
        loss_sum=jnp.sum(w * loss),
        z_loss_sum=lax.stop_gradient(jnp.sum(jnp.where(used, w * z_loss, 0.0))),
        correct_sum=lax.stop_gradient(jnp.sum(correct)),
        weight_sum=jnp.sum(w),
    )


class _Chunk(NamedTuple):
    hidden: jax.Array  # [chunk, H]
    targets: jax.Array  # [chunk]
    token_weights: jax.Array  # [chunk]


def _split(chunk_size: int, tokens: _Chunk) -> _Chunk:
    """Cut [T, ...] into [chunks, chunk, ...] of even size; padding has weight 0."""
    count = tokens.targets.shape[0]
    chunks = max(1, -(-count // chunk_size))
    chunk = max(1, -(-count // chunks))

    def cut(a: jax.Array) -> jax.Array:
        a = jnp.pad(a, [(0, chunks * chunk - count), *[(0, 0)] * (a.ndim - 1)])
        return a.reshape(chunks, chunk, *a.shape[1:])  # [T + padding, ...] -> [chunks, chunk, ...]

    return _Chunk(*(cut(a) for a in tokens))


def _product(a: jax.Array, b: jax.Array, contract_a: int, contract_b: int) -> jax.Array:
    axes = (((contract_a,), (contract_b,)), ((), ()))
    return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def _chunk_loss(
    z_loss_weight: float, chunk: _Chunk, weight: jax.Array, bias: jax.Array | None
) -> tuple[LinearCrossEntropy, jax.Array, jax.Array]:
    """Sums of one chunk, each token's unweighted loss [chunk], and d loss_sum / d logits."""
    logits = _product(chunk.hidden, weight, 1, 1)  # float32 [chunk, V]
    logits = logits if bias is None else logits + bias.astype(jnp.float32)[None, :]
    used = chunk.token_weights != 0
    column = _target_column(chunk.targets, used, weight.shape[0])
    is_target = lax.broadcasted_iota(jnp.int32, logits.shape, 1) == column
    target_logit = jnp.take_along_axis(logits, column, axis=1, mode="fill")[:, 0]
    best_other = jnp.where(is_target, -jnp.inf, logits).max(axis=1)
    highest = jnp.maximum(best_other, target_logit)
    exponential = jnp.exp(logits - highest[:, None])
    partition = exponential.sum(axis=1)
    log_sum = highest + jnp.log(partition)

    z_loss = z_loss_weight * log_sum**2
    token_loss = jnp.where(used, log_sum - target_logit + z_loss, 0.0)
    w = chunk.token_weights.astype(jnp.float32)
    sums = LinearCrossEntropy(
        loss_sum=jnp.sum(w * token_loss),
        z_loss_sum=jnp.sum(jnp.where(used, w * z_loss, 0.0)),
        correct_sum=jnp.sum(jnp.where(target_logit > best_other, w, 0.0)),
        weight_sum=jnp.sum(w),
    )
    scale = jnp.where(used, w * (1.0 + 2.0 * z_loss_weight * log_sum) / partition, 0.0)
    dlogits = exponential * scale[:, None] - jnp.where(is_target, w[:, None], 0.0)
    return sums, token_loss, dlogits


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fused(
    z_loss_weight: float,
    chunk_size: int,
    hidden: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    token_weights: jax.Array,
) -> LinearCrossEntropy:
    cast_weight = weight.astype(hidden.dtype)

    def add(total: LinearCrossEntropy, chunk: _Chunk) -> tuple[LinearCrossEntropy, None]:
        sums, _, _ = _chunk_loss(z_loss_weight, chunk, cast_weight, bias)
        return jax.tree.map(jnp.add, total, sums), None

    zero = LinearCrossEntropy(*(jnp.float32(0) for _ in range(4)))
    total, _ = lax.scan(add, zero, _split(chunk_size, _Chunk(hidden, targets, token_weights)))
    return total


def _fused_forward(
    z_loss_weight: float,
    chunk_size: int,
    hidden: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    token_weights: jax.Array,
) -> tuple[LinearCrossEntropy, tuple]:
    """Values, and the gradients of ``loss_sum`` for a cotangent of one."""
    cast_weight = weight.astype(hidden.dtype)

    def add(carry: tuple, chunk: _Chunk) -> tuple[tuple, tuple[jax.Array, jax.Array]]:
        total, dweight, dbias = carry
        sums, token_loss, dlogits = _chunk_loss(z_loss_weight, chunk, cast_weight, bias)
        dbias = None if dbias is None else dbias + dlogits.sum(axis=0)
        dlogits = dlogits.astype(hidden.dtype)
        dhidden = _product(dlogits, cast_weight, 1, 0).astype(hidden.dtype)
        dweight = dweight + _product(dlogits, chunk.hidden, 0, 0)
        return (jax.tree.map(jnp.add, total, sums), dweight, dbias), (dhidden, token_loss)

    carry = (
        LinearCrossEntropy(*(jnp.float32(0) for _ in range(4))),
        jnp.zeros(weight.shape, jnp.float32),
        None if bias is None else jnp.zeros(bias.shape, jnp.float32),
    )
    chunks = _split(chunk_size, _Chunk(hidden, targets, token_weights))
    (total, dweight, dbias), (dhidden, token_loss) = lax.scan(add, carry, chunks)
    count = hidden.shape[0]
    dhidden = dhidden.reshape(-1, hidden.shape[1])[:count]  # [chunks, chunk, H] -> [T, H]
    # Residuals must be arrays: empty ones carry the dtypes that the gradients return in.
    dtypes = tuple(jnp.zeros(0, a.dtype) for a in (weight, token_weights))
    bias_dtype = None if bias is None else jnp.zeros(0, bias.dtype)
    token_loss = token_loss.reshape(-1)[:count]
    return total, (dhidden, dweight, dbias, token_loss, dtypes, bias_dtype)


def _fused_backward(
    z_loss_weight: float, chunk_size: int, residuals: tuple, cotangent: LinearCrossEntropy
) -> tuple:
    del z_loss_weight, chunk_size
    dhidden, dweight, dbias, token_loss, (weight, token_weights), bias = residuals
    scale = cotangent.loss_sum
    return (
        (scale * dhidden).astype(dhidden.dtype),
        (scale * dweight).astype(weight.dtype),
        None if dbias is None else (scale * dbias).astype(bias.dtype),
        None,
        (scale * token_loss + cotangent.weight_sum).astype(token_weights.dtype),
    )


_fused.defvjp(_fused_forward, _fused_backward)
