"""Top-1 mixture-of-experts feed-forward with a skip class.

Definition, for token ``t`` of class ``e``::

    g, u   = split(x[t] @ gate_up[e].T)                    # F each, float32
    out[t] = gate[t] * ((silu(g) * u) @ down[e].T)         # 0 where e == E, the skip class

``_dense`` writes exactly that: every expert on every token, then select. It is the oracle. The
grouped forms do the work once per token and drop no token:

* ``bucketed`` (CPUs). Plain products of fixed sizes, see `kernels_pallas.expert_buckets`.
* ``ragged_dot``. ``jax.lax.ragged_dot`` on the sorted tokens. On CPUs XLA lowers it to dense work
  over all experts.
* ``pallas`` (GPUs). The kernels of `kernels_pallas.expert_matmul`.

Shapes: x [T, H], gate_up [E, 2F, H] (gate rows first), down [E, H, F]. Every product accumulates in
float32; ``silu(g) * u`` is rounded to ``x.dtype`` before the second product.
FLOPs: 6 T H F forward, 18 T H F with gradients.
Bytes: each expert's weights are read once, E * 3 H F; with gradients they are read again and
written once. Bound by the matrix products while T / E is in the hundreds, by reading weights below.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from kernels_pallas import backend, expect, expert_matmul
from kernels_pallas.expert_buckets import bucketed
from kernels_pallas.expert_dispatch import group_tokens

Dispatch = Literal["dense", "grouped"]
Implementation = Literal["auto", "pallas", "xla", "bucketed", "ragged_dot"]


def expert_mlp(
    x: Float[Array, "tokens hidden"],
    class_index: Int[Array, " tokens"],
    gate: Float[Array, " tokens"],
    gate_up: Float[Array, "experts twice_width hidden"],
    down: Float[Array, "experts hidden width"],
    *,
    dispatch: Dispatch,
    implementation: Implementation = "auto",
) -> Float[Array, "tokens hidden"]:
    """Send every token through its expert.

    Args:
      x: tokens, float32 or bfloat16.
      class_index: int32 in ``0..experts``; ``experts`` is the skip class, whose output is 0. Others
        are refused, or count as the skip class where they are traced. Skipped tokens may hold
        anything, NaN as well: no other output or gradient depends on them.
      gate: float32 factor of each token's output (the router's probability), differentiable.
      gate_up: rows ``0..width-1`` make the gate, the rest the up branch. Weights of another dtype
        than ``x`` are cast for the products; their gradients return in their own dtype.
      down: the output projection.
      dispatch: ``"dense"`` (oracle, E times the work) or ``"grouped"``; the same numbers.
      implementation: of ``"grouped"``; ``"auto"`` and ``"pallas"`` as in `kernels_pallas.backend`,
        ``"xla"`` is ``"bucketed"`` where the default backend is a CPU and ``"ragged_dot"``
        elsewhere. ``"bucketed"`` and ``"pallas"`` support reverse mode, once. ``"dense"`` has no
        kernel: ``"pallas"`` is refused with it.

    Returns:
      ``[tokens, hidden]`` in ``x.dtype``.

    Raises:
      KernelError: for arrays that do not fit together, an unknown form, and where the Pallas form
        is asked for, or due, and cannot run.
    """
    x, gate, gate_up, down = expect.floats("expert_mlp", x=x, gate=gate, gate_up=gate_up, down=down)
    (class_index,) = expect.integers("expert_mlp", class_index=class_index)
    _check(x, class_index, gate, gate_up, down)
    form = _form(x, gate_up, down, dispatch, implementation)
    experts = down.shape[0]
    real = (class_index >= 0) & (class_index < experts)
    class_index, gate = jnp.where(real, class_index, experts), jnp.where(real, gate, 0)
    if isinstance(form, backend.Target) and x.shape[0]:
        return expert_matmul.expert_matmul(form, x, class_index, gate, gate_up, down)
    grouped = bucketed if form == "bucketed" else _ragged
    run = _dense if form == "dense" or x.shape[0] == 0 else grouped
    # Kernels do not read skipped tokens; products of whole blocks do, so there they are zeros.
    x = jnp.where(real[:, None], x, 0)
    return jnp.where(real[:, None], run(x, class_index, gate, gate_up, down), 0)


def _form(
    x: jax.Array, gate_up: jax.Array, down: jax.Array, dispatch: object, implementation: object
) -> object:
    """The target of the kernels, or the name of the form without kernels."""
    if dispatch == "dense":
        # The definition is chosen by its name, so "auto" has nothing left to choose.
        form = "xla" if implementation == "auto" else implementation
        backend.choose(form, "expert_mlp", ["dispatch='dense' has no kernel, 'grouped' has"])
        return "dense"
    if dispatch != "grouped":
        raise backend.KernelError(
            f"expert_mlp: dispatch = {dispatch!r}: must be 'dense' or 'grouped'"
        )
    refusals = expert_matmul.refusals(x, gate_up, down)
    target = backend.choose(implementation, "expert_mlp", refusals, ("bucketed", "ragged_dot"))
    if target is not None:
        return target
    if implementation in ("auto", "xla"):
        return "bucketed" if jax.default_backend() == "cpu" else "ragged_dot"
    return implementation


def _check(
    x: jax.Array, class_index: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array
) -> None:
    expect.axes(
        "expert_mlp",
        x=(x, "tokens hidden"),
        class_index=(class_index, "tokens"),
        gate=(gate, "tokens"),
        gate_up=(gate_up, "experts twice_width hidden"),
        down=(down, "experts hidden width"),
    )
    experts, hidden, width = down.shape
    tokens = x.shape[0]
    expect.shapes(
        "expert_mlp",
        x=(x, (tokens, hidden)),
        class_index=(class_index, (tokens,)),
        gate=(gate, (tokens,)),
        gate_up=(gate_up, (experts, 2 * width, hidden)),
    )
    expect.within("expert_mlp", class_index=(class_index, 0, experts))


def _product(a: jax.Array, b: jax.Array, contract_a: int, contract_b: int) -> jax.Array:
    """Matrix product over one axis of each operand, accumulated in float32."""
    axes = (((contract_a,), (contract_b,)), ((), ()))
    return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


# --- dense: the definition ---------------------------------------------------------------------


def _dense(
    x: jax.Array, class_index: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array
) -> jax.Array:
    @jax.checkpoint
    def one_expert(expert: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
        g, u = jnp.split(_product(x, gate_up.astype(x.dtype), 1, 1), 2, axis=-1)
        hidden = (jax.nn.silu(g) * u).astype(x.dtype)
        y = gate[:, None] * _product(hidden, down.astype(x.dtype), 1, 1)
        return jnp.where((class_index == expert)[:, None], y, 0.0)

    def add(total: jax.Array, expert: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        return total + one_expert(*expert), None

    experts = jnp.arange(down.shape[0], dtype=class_index.dtype)
    total, _ = lax.scan(add, jnp.zeros(x.shape, jnp.float32), (experts, gate_up, down))
    return total.astype(x.dtype)


# --- ragged_dot --------------------------------------------------------------------------------


def _ragged(
    x: jax.Array, class_index: jax.Array, gate: jax.Array, gate_up: jax.Array, down: jax.Array
) -> jax.Array:
    num_experts = down.shape[0]
    groups = group_tokens(class_index, num_experts)

    def product(rows: jax.Array, weight: jax.Array) -> jax.Array:
        transposed = jnp.swapaxes(weight.astype(rows.dtype), 1, 2)  # [E, in, out]
        return lax.ragged_dot(rows, transposed, groups.load, preferred_element_type=jnp.float32)

    # What ragged_dot leaves in rows past the last group is undefined: select, never multiply.
    used = (jnp.arange(x.shape[0]) < groups.load.sum())[:, None]
    rows = _gather_rows(x, groups.token_at, groups.place_of)
    g, u = jnp.split(jnp.where(used, product(rows, gate_up), 0.0), 2, axis=-1)
    y = jnp.where(used, product((jax.nn.silu(g) * u).astype(x.dtype), down), 0.0)
    y = _gather_rows(y, groups.place_of, groups.token_at)
    return (gate[:, None] * y).astype(x.dtype)


@jax.custom_vjp
def _gather_rows(rows: jax.Array, index: jax.Array, inverse: jax.Array) -> jax.Array:
    """Permute rows; the gradient is the inverse permutation, a gather as well."""
    del inverse
    return rows[index]


_gather_rows.defvjp(
    lambda rows, index, inverse: (rows[index], inverse),
    lambda inverse, cotangent: (cotangent[inverse], None, None),
)
