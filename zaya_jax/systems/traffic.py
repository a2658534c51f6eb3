"""Bytes that one device sends in one step, by mesh axis, in closed form.

Collectives are counted as rings send them, n being the size of the group and S the bytes of the
whole array:

    all-gather, reduce-scatter   (n - 1) / n * S
    all-reduce                   2 (n - 1) / n * S
    all-to-all                   (n - 1) / n * S, S being what one device holds
    point to point               S

Gradients travel as float32, activations and gathered parameters in `model.activation_dtype`. What
is small is left out: norms of the gradient, loss sums, counts of the router.
"""

from __future__ import annotations

from zaya_jax.config import ModelConfig, RematPolicy
from zaya_jax.parallel.settings import MESH_AXES
from zaya_jax.systems.memory import MASTER_BYTES, activation_bytes, leaf_sizes, tokens_per_device
from zaya_jax.training.settings import RunConfig


def ring_share(devices: int) -> float:
    """(n - 1) / n."""
    return (devices - 1) / devices


def bytes_sent(config: RunConfig, mesh: dict[str, int]) -> dict[str, float]:
    """Bytes per step and device for every axis; 0 where the axis has size one."""
    model, microbatches = config.model, config.train.microbatches
    tokens = tokens_per_device(config, mesh)
    sent = dict.fromkeys(MESH_AXES, 0.0)
    leaves = leaf_sizes(model, mesh)
    # A tied embedding is gathered for the lookup and for the head; both gradients are summed.
    is_tied = model.tie_embeddings
    uses = {leaf.path: 2 if is_tied and "embedding" in leaf.path else 1 for leaf in leaves}
    own = MASTER_BYTES * sum(leaf.numbers_here for leaf in leaves)
    reduced = MASTER_BYTES * sum(uses[leaf.path] * leaf.numbers_here for leaf in leaves)
    sent["data"] = 2 * ring_share(mesh["data"]) * reduced
    split = [leaf for leaf in leaves if leaf.numbers_gathered > leaf.numbers_here]
    whole = own - MASTER_BYTES * sum(leaf.numbers_here for leaf in split)
    # Gathered as products read them, experts once more for the backward pass and, where layers are
    # repeated, everything twice more; gradients go back as they are summed.
    for leaf in split:
        again = "experts" in leaf.path
        gathers = (1 + again) if model.remat is RematPolicy.NONE else 3
        bytes_each = gathers * activation_bytes(model) + MASTER_BYTES
        sent["fsdp"] += microbatches * uses[leaf.path] * bytes_each * leaf.numbers_gathered
    sent["fsdp"] = ring_share(mesh["fsdp"]) * (sent["fsdp"] + 2 * whole)
    per_layer = _layer_bytes(model, mesh, tokens)
    for axis, size in per_layer.items():
        sent[axis] += model.num_layers * microbatches * size
    if mesh["context"] > 1:
        # Final states go back to the order of the sequence, their gradients the other way.
        sent["context"] += 2 * microbatches * MASTER_BYTES * tokens * model.hidden_size
    # Parameters that are whole on the devices of these axes have their gradients summed.
    experts = MASTER_BYTES * sum(leaf.numbers_here for leaf in leaves if "experts" in leaf.path)
    sent["expert"] += 2 * ring_share(mesh["expert"]) * (reduced - experts)
    sent["context"] += 2 * ring_share(mesh["context"]) * reduced
    return sent


def _layer_bytes(model: ModelConfig, mesh: dict[str, int], tokens: int) -> dict[str, float]:
    """Of one layer, forward and backward, for the axes that activations travel over."""
    size = 4 if model.activation_dtype == "float32" else 2
    expert, context, tensor = (mesh[axis] for axis in ("expert", "context", "tensor"))
    replays = 2 if model.remat.repeats_layers else 1  # forward passes
    # There and back; the backward pass sends both once more.
    exchange = (expert - 1) * tokens * (model.hidden_size * size + 4) * 2
    halo_tokens = max(model.depthwise_conv_width + model.grouped_conv_width - 2, 1)
    # Before the early chunk and before the late one.
    halo = 2 * halo_tokens * (model.query_size + 1.5 * model.kv_size) * size if context > 1 else 0
    key_value = (context - 1) * tokens * 2 * model.kv_size // tensor * size
    summed = 2 * ring_share(tensor) * tokens * model.hidden_size * size
    return {
        "expert": exchange * (replays + 1),
        "context": (key_value + halo) * (replays + 1),
        # Outputs of attention and of the experts, forward; gradients of their inputs, backward.
        "tensor": 2 * summed * (replays + 1),
    }
