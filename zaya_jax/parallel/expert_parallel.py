"""Experts spread over devices: tokens travel to their expert and back.

Each device holds its own tokens and `experts / expert` of the experts. One all-to-all over the
`expert` axis brings every token, with its gate, to the device that owns its expert; a second one
brings the output back. A device reserves room for all the tokens of every peer, so no token is
ever dropped however skewed the routing is; room that is not used is of the skip class and costs
nothing in the products. Tokens of the skip class do not travel.

Over `fsdp` the weights are gathered before use and their gradients summed and scattered after;
over `tensor` each device has a part of every expert's width and the outputs are summed.

Bytes sent per device and layer: 2 * (expert - 1) * tokens * (hidden * itemsize + 8).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.extend
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from kernels_pallas.backend import Implementation
from kernels_pallas.expert_mlp import Dispatch, expert_mlp
from zaya_jax.parallel.mesh import TOKENS, current_mesh


def experts_on_mesh(
    x: Float[Array, "batch seq hidden"],
    class_index: Int[Array, "batch seq"],
    gate: Float[Array, "batch seq"],
    gate_up: Float[Array, "experts twice_width hidden"],
    down: Float[Array, "experts hidden width"],
    *,
    dispatch: Dispatch,
    implementation: Implementation,
    gather_again: bool,
) -> Float[Array, "batch seq hidden"]:
    """`expert_mlp` of every token, on the mesh in force or, without one, on one device.

    Args:
      x: of all tokens, skipped ones too.
      class_index: see `expert_mlp`, as for what follows.
      gate: factor of each output.
      gate_up: as declared; on a mesh a device holds a part.
      down: the same.
      dispatch: see `expert_mlp`.
      implementation: see `expert_mlp`.
      gather_again: the backward pass gathers weights anew. Otherwise a loop over layers keeps what
        it made of them, which is all layers' experts, whole, once more in memory.
    """
    hidden = x.shape[-1]
    mesh = current_mesh()
    if mesh is None:
        # [batch, seq, ...] -> [batch * seq, ...]: experts do not see the sequence
        output = expert_mlp(
            x.reshape(-1, hidden),
            class_index.reshape(-1),
            gate.reshape(-1),
            gate_up,
            down,
            dispatch=dispatch,
            implementation=implementation,
        )
        return output.reshape(x.shape)

    function = _across(mesh, dispatch, implementation)
    if gather_again:
        function = jax.checkpoint(function, policy=_keeps, prevent_cse=False)
    return function(x, class_index, gate, gate_up, down)


def _across(
    mesh: Mesh | AbstractMesh, dispatch: Dispatch, implementation: Implementation
) -> Callable[..., Array]:
    """The same function of arrays that are spread over a mesh."""

    def on_device(x: Array, class_index: Array, gate: Array, gate_up: Array, down: Array) -> Array:
        hidden = x.shape[-1]
        # The gate and up rows of the same channels: [experts, 2, width, hidden], then flat again.
        gate_up = jax.lax.all_gather(gate_up, "fsdp", axis=3, tiled=True)
        gate_up = gate_up.reshape(gate_up.shape[0], -1, hidden)
        down = jax.lax.all_gather(down, "fsdp", axis=1, tiled=True)
        # [batch, seq, ...] of this device -> [tokens, ...]
        output = _exchange(
            x.reshape(-1, hidden),
            class_index.reshape(-1),
            gate.reshape(-1),
            gate_up,
            down,
            parts=mesh.shape["expert"],
            dispatch=dispatch,
            implementation=implementation,
        )
        return jax.lax.psum(output, "tensor").reshape(x.shape)

    def on_mesh(x: Array, class_index: Array, gate: Array, gate_up: Array, down: Array) -> Array:
        # [experts, 2 * width, hidden] -> [experts, 2, width, hidden]
        gate_up = gate_up.reshape(gate_up.shape[0], 2, -1, gate_up.shape[2])
        return jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(
                TOKENS,
                TOKENS,
                TOKENS,
                PartitionSpec("expert", None, "tensor", "fsdp"),
                PartitionSpec("expert", "fsdp", "tensor"),
            ),
            out_specs=TOKENS,
            check_vma=False,
        )(x, class_index, gate, gate_up, down)

    return on_mesh


def _keeps(primitive: jax.extend.core.Primitive, *_: object, **__: object) -> bool:
    """Whether the backward pass finds a result of the forward pass instead of making it again."""
    return primitive.name not in ("all_gather", "reshape")


def _exchange(
    x: Array,
    class_index: Array,
    gate: Array,
    gate_up: Array,
    down: Array,
    *,
    parts: int,
    dispatch: Dispatch,
    implementation: Implementation,
) -> Array:
    """Outputs [tokens, hidden] of this device's tokens, computed where their experts live."""
    tokens, hidden = x.shape
    own_experts = down.shape[0]
    skip = own_experts * parts
    owner = class_index // own_experts  # the skip class has an owner past the last
    # A token's place among those that go to the same device, in order of the tokens.
    goes_to = jax.nn.one_hot(owner, parts, dtype=jnp.int32)
    rank = jnp.take_along_axis(
        jnp.cumsum(goes_to, axis=0) - 1, jnp.minimum(owner, parts - 1)[:, None], axis=1
    )[:, 0]
    travels = class_index < skip
    room = jnp.where(travels, owner * tokens + rank, parts * tokens)

    def send(values: Array, empty: float | int) -> Array:
        """Values of this device's tokens -> those of the tokens that arrive."""
        buffer = jnp.full((parts * tokens, *values.shape[1:]), empty, values.dtype)
        return _all_to_all(buffer.at[room].set(values, mode="drop"), parts)

    arrived = expert_mlp(
        send(x, 0),
        send(class_index % own_experts, own_experts),
        send(gate, 0),
        gate_up,
        down,
        dispatch=dispatch,
        implementation=implementation,
    )
    returned = _all_to_all(arrived, parts)
    output = returned.at[room].get(mode="fill", fill_value=0)
    return output.reshape(tokens, hidden)


def _all_to_all(rows: Array, parts: int) -> Array:
    """Part i of the rows goes to device i of the `expert` axis; arrivals lie in sender's order."""
    # [parts * tokens, ...] -> [parts, tokens, ...]
    split = rows.reshape(parts, -1, *rows.shape[1:])
    return jax.lax.all_to_all(split, "expert", 0, 0).reshape(rows.shape)
