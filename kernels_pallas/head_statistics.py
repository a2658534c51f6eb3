"""Log-sum, target logit and best other logit of every token, without the logits.

    logits[t] = hidden[t] @ weight.T + bias                                      float32
    log_sum[t] = logsumexp(logits[t]),  target[t] = logits[t, targets[t]]
    best_other[t] = the largest of the other logits (no gradient)

Cross entropy is ``log_sum - target``, a token's log-probability ``target - log_sum``, the z-loss a
function of ``log_sum``; their gradients are chain rule on [tokens] vectors.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect
from kernels_pallas.gpu import cross_entropy as gpu
from kernels_pallas.gpu.cross_entropy import Statistics


def refusals(hidden: Array, weight: Array) -> list[str | None]:
    """Why the kernels cannot take these arrays; None entries are no reasons."""
    if hidden.dtype in (jnp.float32, jnp.bfloat16):
        return []
    return [f"hidden has dtype {hidden.dtype}, not float32 or bfloat16 (weight {weight.shape})"]


def expect_fit(
    operation: str, hidden: Array, weight: Array, bias: Array | None, targets: Array
) -> None:
    """Refuse a head and targets that do not belong to the states."""
    expect.axes(
        operation,
        hidden=(hidden, "tokens hidden"),
        weight=(weight, "vocab hidden"),
        targets=(targets, "tokens"),
    )
    vocab = weight.shape[0]
    expect.shapes(
        operation,
        weight=(weight, (vocab, hidden.shape[1])),
        bias=(bias, (vocab,)),
        targets=(targets, hidden.shape[:1]),
    )


def definition(
    hidden: Float[Array, "tokens hidden"],
    weight: Float[Array, "vocab hidden"],
    bias: Float[Array, " vocab"] | None,
    targets: Int[Array, " tokens"],
) -> Statistics:
    """All logits at once in float32: the specification."""
    logits = hidden.astype(jnp.float32) @ weight.astype(jnp.float32).T
    logits = logits if bias is None else logits + bias.astype(jnp.float32)[None, :]
    column = jnp.where(targets < 0, logits.shape[1], targets)[:, None]
    own = jnp.take_along_axis(logits, column, axis=1, mode="fill")[:, 0]
    is_target = jnp.arange(logits.shape[1])[None, :] == column
    other = jnp.where(is_target, -jnp.inf, logits).max(axis=1)
    return Statistics(jax.nn.logsumexp(logits, axis=1), own, jax.lax.stop_gradient(other))


def token_log_probabilities(
    hidden: Float[Array, "tokens hidden"],
    weight: Float[Array, "vocab hidden"],
    bias: Float[Array, " vocab"] | None,
    targets: Int[Array, " tokens"],
    *,
    implementation: backend.Implementation = "auto",
) -> Float[Array, " tokens"]:
    """Log-probability of each target, float32, differentiable.

    Ids outside the vocabulary are refused, or NaN where they are traced. A token whose state is not
    finite gets NaN and passes no gradient back; those of the others do not depend on it. The XLA
    form is `definition`, which holds all logits.

    Raises:
      KernelError: for arrays that do not fit together, and where the Pallas form is asked for, or
        due, and cannot run.
    """
    hidden, weight, bias = expect.floats(
        "token_log_probabilities", hidden=hidden, weight=weight, bias=bias
    )
    (targets,) = expect.integers("token_log_probabilities", targets=targets)
    expect_fit("token_log_probabilities", hidden, weight, bias, targets)
    expect.within("token_log_probabilities", targets=(targets, 0, weight.shape[0] - 1))
    target = backend.choose(implementation, "token_log_probabilities", refusals(hidden, weight))
    finite = jnp.all(jnp.isfinite(hidden), axis=1)
    hidden = jnp.where(finite[:, None], hidden, 0)
    if target is None or hidden.size == 0:  # of no tokens there is nothing to run a kernel for
        found = definition(hidden, weight, bias, targets)
    else:
        found = head_statistics(target, hidden, weight, bias, targets)
    return jnp.where(finite, found.target - found.log_sum, jnp.nan)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def head_statistics(
    target: backend.Target, hidden: Array, weight: Array, bias: Array | None, targets: Array
) -> Statistics:
    """The Pallas form, for callers that have chosen it; the weight is cast to hidden's dtype."""
    return gpu.statistics(hidden, weight.astype(hidden.dtype), bias, targets, target=target)


def _forward(
    target: backend.Target, hidden: Array, weight: Array, bias: Array | None, targets: Array
) -> tuple:
    found = head_statistics(target, hidden, weight, bias, targets)
    return found, (hidden, weight, bias, targets, found.log_sum)


def _backward(target: backend.Target, saved: tuple, cotangents: Statistics) -> tuple:
    hidden, weight, bias, targets, log_sum = saved
    dhidden, dweight, dbias = gpu.gradients(
        hidden, weight.astype(hidden.dtype), bias, targets, log_sum, cotangents, target=target
    )
    return (
        dhidden.astype(hidden.dtype),
        dweight.astype(weight.dtype),
        None if bias is None else dbias.astype(bias.dtype),
        None,
    )


head_statistics.defvjp(_forward, _backward)
