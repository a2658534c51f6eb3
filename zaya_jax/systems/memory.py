"""Memory of one device in closed form: state exactly, activations and workspace as estimates.

State follows from the declared shapes and the table of logical axes, so it equals what the compiled
step takes as arguments. Activations are counted for the GPU kernels, which keep no attention
scores; on a CPU the plain form of attention keeps them, and needs more.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from zaya_jax.checkpoint.layouts import transformers_layout
from zaya_jax.checkpoint.tensor_rule import LeafPath, axis_sizes
from zaya_jax.config import ModelConfig, RematPolicy
from zaya_jax.data.packing import BATCH_DTYPES
from zaya_jax.optimizer.groups import ParameterKind, parameter_kind
from zaya_jax.optimizer.settings import OptimizerKind
from zaya_jax.parallel.mesh import AXIS_RULES
from zaya_jax.training.settings import RunConfig

MASTER_BYTES = 4  # of parameters, gradients and moments, which are float32
_HEAD_CHUNK = 512  # tokens whose logits exist at once


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device by category."""

    parameters: int
    gradients: int
    optimizer: int
    balancing: int
    batch: int
    activations: int  # kept from the forward for the backward pass
    gathered_parameters: int  # whole layers' parameters that fsdp keeps for the backward pass
    workspace: int  # LM head, and one layer at a time
    host_optimizer: int = 0  # moments that wait in host memory for the update
    host_activations: int = 0  # layers' inputs that wait there for the backward pass

    @property
    def state(self) -> int:
        """What lives from step to step, and the batch."""
        return self.parameters + self.optimizer + self.balancing + self.batch

    @property
    def total(self) -> int:
        """The sum of the device's own categories."""
        return sum(dataclasses.asdict(self).values()) - self.on_host

    @property
    def on_host(self) -> int:
        """What the host keeps for the device."""
        return self.host_optimizer + self.host_activations


@dataclasses.dataclass(frozen=True)
class LeafSize:
    """One parameter: how many numbers there are, on one device, and what moves it."""

    path: tuple[str, ...]
    numbers: int
    numbers_here: int
    numbers_gathered: int  # on one device while it is used: fsdp undone
    kind: ParameterKind


def leaf_sizes(model: ModelConfig, mesh: dict[str, int]) -> list[LeafSize]:
    """Every parameter, balancing biases left out."""
    leaves = []
    for path, shape, splits, kind in _declared(model):
        here = math.prod(n // mesh.get(axis, 1) for n, axis in zip(shape, splits, strict=True))
        gathered = here * math.prod(mesh[axis] for axis in splits if axis == "fsdp")
        leaves.append(LeafSize(path, math.prod(shape), here, gathered, kind))
    return leaves


@functools.cache
def _declared(
    model: ModelConfig,
) -> list[tuple[LeafPath, list[int], list[str], ParameterKind]]:
    """Path, shape, mesh axes ("" where whole) and kind of every parameter."""
    lengths = axis_sizes(model)
    return [
        (
            rule.path,
            [lengths[axis] for axis in rule.axes],
            [AXIS_RULES.get(axis, "") for axis in rule.axes],
            parameter_kind(rule.path[1:]),
        )
        for rule in transformers_layout(model)
        if rule.path[0] == "params"
    ]


def device_memory(config: RunConfig, mesh: dict[str, int]) -> Memory:
    """Memory of one device of the mesh."""
    model = config.model
    leaves = leaf_sizes(model, mesh)
    parameters = MASTER_BYTES * sum(leaf.numbers_here for leaf in leaves)
    tokens = tokens_per_device(config, mesh)
    biases = model.num_layers * model.num_router_classes
    # biases, two moments of them, and the counters of step, schedules and random stream
    balancing = MASTER_BYTES * (3 * biases)
    layers = [leaf for leaf in leaves if leaf.path[1] == "layers"]
    is_split = mesh["fsdp"] > 1
    keeps_gathered = is_split and not model.remat.repeats_layers
    # Experts are gathered again for the backward pass, the rest is kept as the products read it.
    kept = sum(leaf.numbers_gathered for leaf in layers if "experts" not in leaf.path)
    gathered = activation_bytes(model) * kept if keeps_gathered else 0
    batch_bytes = sum(np.dtype(dtype).itemsize for dtype in BATCH_DTYPES.values())
    memory = Memory(
        parameters=parameters,
        # XLA's programs for GPUs hold them twice, laid out for the exchange and for the optimiser.
        gradients=2 * parameters if is_split and model.remat is RematPolicy.NONE else parameters,
        optimizer=_optimizer_bytes(config, leaves),
        balancing=balancing,
        batch=tokens * config.train.microbatches * batch_bytes,
        activations=tokens
        * (model.num_layers * kept_bytes_per_token(model, mesh) + kept_outside_layers(model)),
        gathered_parameters=gathered,
        workspace=_workspace(model, mesh, tokens, layers),
        host_activations=tokens * model.num_layers * host_bytes_per_token(model),
    )
    return _with_moments_on_host(memory) if config.optimizer.offload_state else memory


def _with_moments_on_host(memory: Memory) -> Memory:
    """The same with offloading: moments come for the update, when activations have made room."""
    room = memory.activations + memory.gathered_parameters + memory.workspace
    return dataclasses.replace(
        memory,
        optimizer=0,
        host_optimizer=memory.optimizer,
        workspace=memory.workspace + max(0, memory.optimizer - room),
    )


def tokens_per_device(config: RunConfig, mesh: dict[str, int]) -> int:
    """Tokens of one microbatch whose attention and experts one device computes."""
    rows = config.data.batch_size // config.train.microbatches
    parts = mesh["data"] * mesh["fsdp"] * mesh["expert"] * mesh["context"]
    return rows * config.data.sequence_length // parts


def kept_bytes_per_token(model: ModelConfig, mesh: dict[str, int]) -> int:
    """Bytes of one token and layer that a device keeps for the backward pass."""
    size = activation_bytes(model)
    tensor = mesh["tensor"]
    carried = _carried_bytes(model)
    if model.remat is RematPolicy.OFFLOAD:
        return 0
    if model.remat is RematPolicy.FULL:
        return carried
    channels = model.query_size + 2 * model.kv_size
    if model.remat is RematPolicy.DOTS:
        # Results of projections and of the router's layers, float32 as they are summed; the
        # experts' products are grouped and are repeated.
        router = 3 * model.router_hidden_size + model.num_router_classes
        return carried + MASTER_BYTES * (channels + model.hidden_size + router)
    products = channels + model.hidden_size + 3 * model.expert_intermediate_size // tensor
    router = 4 * model.router_hidden_size * MASTER_BYTES
    # Besides the products: two normalised inputs, latents before and after the convolutions and
    # RoPE, attention's output, the second residual, the experts' input and output.
    elementwise = 4 * model.hidden_size + 3 * channels
    # A device has room for all tokens of every peer, and keeps what its experts made of them.
    received = model.hidden_size + 3 * model.expert_intermediate_size // tensor
    elementwise += (mesh["expert"] - 1) * received
    return carried + size * (products + elementwise) + 2 * router + MASTER_BYTES * model.hidden_size


def activation_bytes(model: ModelConfig) -> int:
    """Of one number between layers."""
    return MASTER_BYTES if model.activation_dtype == "float32" else 2


def host_bytes_per_token(model: ModelConfig) -> int:
    """Bytes of one token and layer that the host keeps for the backward pass."""
    return _carried_bytes(model) if model.remat is RematPolicy.OFFLOAD else 0


def _carried_bytes(model: ModelConfig) -> int:
    return MASTER_BYTES * (model.hidden_size + model.router_hidden_size)


def kept_outside_layers(model: ModelConfig) -> int:
    """Bytes of one token that the embedding, the final norm and the loss keep.

    Six arrays of hidden states in float32, a mask of the same shape, and RoPE tables.
    """
    return model.hidden_size * (6 * MASTER_BYTES + 1) + MASTER_BYTES * model.rotary_dim


def _optimizer_bytes(config: RunConfig, leaves: list[LeafSize]) -> int:
    is_muon = config.optimizer.kind is OptimizerKind.MUON
    muon_moments = 1 if config.optimizer.muon_momentum > 0 else 0
    numbers = sum(
        leaf.numbers_here * (muon_moments if is_muon and leaf.kind is ParameterKind.MATRIX else 2)
        for leaf in leaves
    )
    return MASTER_BYTES * numbers


def _workspace(
    model: ModelConfig, mesh: dict[str, int], tokens: int, layers: list[LeafSize]
) -> int:
    """What the LM head and one layer need while they run: the larger.

    With fsdp both: the table's gradient waits for its exchange while layers go backwards.
    """
    table = MASTER_BYTES * model.vocab_size * model.hidden_size
    head = MASTER_BYTES * 2 * min(tokens, _HEAD_CHUNK) * model.vocab_size + table
    head += table if mesh["fsdp"] * mesh["tensor"] > 1 else 0
    one_layer = sum(leaf.numbers_gathered for leaf in layers) // model.num_layers
    none = model.replace(remat=RematPolicy.NONE)
    recomputed = tokens * kept_bytes_per_token(none, mesh)
    # Room for all tokens of every peer, in both directions.
    exchange = 2 * (mesh["expert"] - 1) * tokens * model.hidden_size * MASTER_BYTES
    layer = 2 * MASTER_BYTES * one_layer + recomputed + exchange
    return head + table + layer if mesh["fsdp"] > 1 else max(head, layer)
