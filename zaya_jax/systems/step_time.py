"""How long a step should take, and what bounds it.

Three clocks run beside each other: matrix products, memory, and each mesh axis' exchange. The
prediction for products has two ends. `plateau_seconds` takes every product at the device's best
measured rate. `sized_seconds` takes into account that a product with less work than the plateau
reaches a share of that rate proportional to its work: a straight line, the simplest form of the
published rule that about 200 GFLOP are needed on MI300X; nobody has published the curve. A step is
expected between the two ends of `total`.
"""

from __future__ import annotations

import dataclasses

from zaya_jax.config import ModelConfig, RematPolicy
from zaya_jax.model_size import training_flops_per_token
from zaya_jax.optimizer.groups import ParameterKind
from zaya_jax.optimizer.settings import OptimizerKind
from zaya_jax.systems.hardware import Hardware
from zaya_jax.systems.memory import (
    Memory,
    kept_bytes_per_token,
    leaf_sizes,
    tokens_per_device,
)
from zaya_jax.training.settings import RunConfig

_OVERLAP = 0.5  # share of an exchange that hides behind products: an assumption
HOST = "host"  # what an exchange with the host's memory is called among those over axes
_HOST_GB_S = 64  # PCIe 5.0 with 16 lanes, one way: what all listed hardware has


@dataclasses.dataclass(frozen=True)
class Product:
    """One matrix product of the forward pass on one device, as often as a microbatch has it."""

    name: str
    flops: float  # of one call
    calls: int


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of one step on one device."""

    plateau_seconds: float
    sized_seconds: float
    memory_seconds: float
    exchange_seconds: dict[str, float]  # by mesh axis and with the host, none of it hidden
    model_flops: float  # per device, without recomputation

    @property
    def fastest(self) -> float:
        """Products at the plateau, every exchange hidden where it can be."""
        return max(self.plateau_seconds, *self.exchange_seconds.values()) + self.memory_seconds

    @property
    def slowest(self) -> float:
        """Products as their sizes allow, exchanges half hidden."""
        exchange = sum(self.exchange_seconds.values()) * (1 - _OVERLAP)
        return self.sized_seconds + self.memory_seconds + exchange

    @property
    def bound(self) -> str:
        """The longest of the clocks."""
        clocks = {
            "matrix products": self.sized_seconds,
            "memory": self.memory_seconds,
            **{
                f"exchange {'with the' if axis == HOST else 'over'} {axis}": seconds
                for axis, seconds in self.exchange_seconds.items()
            },
        }
        return max(clocks, key=lambda name: clocks[name])


def layer_products(config: RunConfig, mesh: dict[str, int]) -> list[Product]:
    """The products of one layer and of the head, for one device's microbatch."""
    model, tokens = config.model, tokens_per_device(config, mesh)
    tensor, layers = mesh["tensor"], model.num_layers
    here = model.num_experts // mesh["expert"]
    # Evenly loaded: experts of this device serve the tokens of all its peers.
    per_expert = tokens * mesh["expert"] * model.experts_per_token / model.num_experts
    width = model.expert_intermediate_size // tensor
    keys = config.data.sequence_length / 2
    hidden, query, kv = model.hidden_size, model.query_size, model.kv_size
    return [
        Product("query projection", 2 * tokens * hidden * query, layers),
        Product("key and value projections", 2 * tokens * hidden * kv, 2 * layers),
        Product("attention", 4 * tokens * keys * query / tensor, layers),
        Product("output projection", 2 * tokens * query * hidden / tensor, layers),
        Product("router", 2 * tokens * hidden * model.router_hidden_size, layers),
        Product("expert gate and up", 4 * per_expert * hidden * width, layers * here),
        Product("expert down", 2 * per_expert * hidden * width, layers * here),
        Product("LM head", 2 * tokens / tensor * hidden * model.vocab_size, 1),
    ]


def predict(
    config: RunConfig,
    mesh: dict[str, int],
    hardware: Hardware,
    memory: Memory,
    sent: dict[str, float],
) -> StepTime:
    """The clocks of one step."""
    model, microbatches = config.model, config.train.microbatches
    tokens = tokens_per_device(config, mesh) * microbatches
    passes = 4 if model.remat.repeats_layers else 3
    rate = hardware.achieved_bf16_tflops * 1e12
    plateau = sized = newton_schulz_flops(config, mesh) / rate
    for product in layer_products(config, mesh):
        work = product.flops * product.calls * passes * microbatches
        share = min(1.0, product.flops / (hardware.gemm_plateau_gflop * 1e9))
        plateau += work / rate
        sized += work / (rate * share)
    flops = training_flops_per_token(model, config.data.sequence_length) * tokens / mesh["tensor"]
    # Parameters, gradients and moments read and written once; activations written once, read twice.
    none = model.replace(remat=RematPolicy.NONE)
    moments = memory.optimizer + memory.host_optimizer
    moved = 2 * (memory.parameters + moments) + memory.gradients
    moved += 3 * tokens * model.num_layers * kept_bytes_per_token(none, mesh)
    return StepTime(
        plateau_seconds=plateau,
        sized_seconds=sized,
        memory_seconds=moved / (hardware.achieved_hbm_tb_s * 1e12),
        exchange_seconds={
            axis: axis_seconds(axis, size, mesh, hardware) for axis, size in sent.items()
        },
        model_flops=flops,
    )


def axis_seconds(axis: str, size: float, mesh: dict[str, int], hardware: Hardware) -> float:
    """Seconds in which a device sends its bytes over an axis, or to its host and back.

    Inner axes are neighbours in the machine. A group within a node uses the node's fabric. One that
    spans nodes works in two levels, within the node and then between the nodes' equal ranks: each
    device sends 1/members of the bytes over its own network card.
    """
    if size == 0:
        return 0.0
    if axis == HOST:
        return size / (_HOST_GB_S * 1e9)
    names = list(mesh)
    stride = 1
    for inner in names[names.index(axis) + 1 :]:
        stride *= mesh[inner]
    members = max(1, min(mesh[axis], hardware.devices_per_node // stride))
    seconds = 0.0
    if members > 1:
        seconds += size / (hardware.fabric_gb_s(members) * 1e9)
    if members < mesh[axis]:
        seconds += size / members / (hardware.nic_gb_s * 1e9)
    return seconds


def newton_schulz_flops(config: RunConfig, mesh: dict[str, int]) -> float:
    """Of Muon's iterations on one device: its part of the matrices, each m by n with m <= n.

    One iteration is X X', its square and their product with X: 4 m^2 n + 2 m^3.
    """
    if config.optimizer.kind is not OptimizerKind.MUON:
        return 0.0
    model: ModelConfig = config.model
    hidden, width = model.hidden_size, model.expert_intermediate_size
    shapes = {
        "gate_up": (hidden, 2 * width),
        "down": (hidden, width),
    }
    total = 0.0
    for leaf in leaf_sizes(model, mesh):
        if leaf.kind is not ParameterKind.MATRIX:
            continue
        short, long = sorted(shapes.get(leaf.path[-1], _square_like(leaf.numbers, model)))
        matrices = leaf.numbers_here / (short * long)
        total += matrices * (4 * short**2 * long + 2 * short**3)
    return config.optimizer.muon_steps * total


def _square_like(numbers: int, model: ModelConfig) -> tuple[int, int]:
    """Rows and columns of one layer's projection, which has the hidden size on one side."""
    per_layer = max(numbers // model.num_layers, 1)
    return max(per_layer // model.hidden_size, 1), min(model.hidden_size, per_layer)
