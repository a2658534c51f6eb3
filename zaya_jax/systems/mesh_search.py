"""Every mesh of N devices, priced; the best ones first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from jax.sharding import AbstractMesh, AxisType

from zaya_jax.config import ConfigError
from zaya_jax.parallel.mesh import check_model_fits
from zaya_jax.parallel.settings import MESH_AXES, MeshConfig
from zaya_jax.systems.hardware import Hardware
from zaya_jax.systems.memory import Memory, device_memory
from zaya_jax.systems.step_time import HOST, StepTime, predict
from zaya_jax.systems.traffic import bytes_sent
from zaya_jax.training.settings import RunConfig

_LARGEST_PART = {"context": 32, "tensor": 8, "expert": 64}  # beyond them nothing is gained


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mesh and what it would cost."""

    mesh: dict[str, int]
    memory: Memory
    sent: dict[str, float]
    time: StepTime
    fits: bool


def evaluate(config: RunConfig, mesh: dict[str, int], hardware: Hardware) -> Candidate:
    """The cost of one mesh.

    Raises:
      ConfigError: when it does not divide what it splits.
    """
    kinds = (AxisType.Auto,) * len(MESH_AXES)
    abstract = AbstractMesh(tuple(mesh.values()), MESH_AXES, axis_types=kinds)
    rows = config.data.batch_size // config.train.microbatches
    check_model_fits(abstract, config.model, batch=rows, sequence=config.data.sequence_length)
    memory = device_memory(config, mesh)
    sent = bytes_sent(config, mesh)
    if memory.on_host:  # there and back
        times = config.train.microbatches
        sent[HOST] = 2.0 * (memory.host_optimizer + times * memory.host_activations)
    time = predict(config, mesh, hardware, memory, sent)
    return Candidate(mesh, memory, sent, time, memory.total < hardware.room_bytes)


def candidates(config: RunConfig, devices: int, hardware: Hardware, count: int) -> list[Candidate]:
    """The config's mesh if it names one, otherwise the best there are.

    Raises:
      ConfigError: when the mesh, or every mesh, does not fit devices, model and batch.
    """
    if config.mesh == MeshConfig():
        return best_meshes(config, devices, hardware, count)
    return [evaluate(config, config.mesh.sizes(devices), hardware)]


def best_meshes(config: RunConfig, devices: int, hardware: Hardware, count: int) -> list[Candidate]:
    """The quickest meshes that fit into memory; where none does, those that need least.

    Raises:
      ConfigError: when no mesh divides model and batch.
    """
    found = []
    for sizes in _factorisations(devices, len(MESH_AXES)):
        mesh = dict(zip(MESH_AXES, sizes, strict=True))
        if any(mesh[axis] > most for axis, most in _LARGEST_PART.items()):
            continue
        try:
            found.append(evaluate(config, mesh, hardware))
        except ConfigError:  # one of many that divide nothing evenly
            continue
    if not found:
        raise ConfigError(
            f"--devices={devices}: no mesh divides data.batch_size={config.data.batch_size} and "
            "the model; choose a batch that is a multiple of the devices, or fewer devices"
        )
    fitting = [one for one in found if one.fits]
    if not fitting:
        return sorted(found, key=lambda one: one.memory.total)[:count]
    return sorted(fitting, key=lambda one: one.time.slowest)[:count]


def _factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of that many factors, in order."""
    if parts == 1:
        yield (number,)
        return
    small = [factor for factor in range(1, math.isqrt(number) + 1) if number % factor == 0]
    for factor in sorted({*small, *(number // factor for factor in small)}):
        for rest in _factorisations(number // factor, parts - 1):
            yield (factor, *rest)


def mesh_name(mesh: dict[str, int]) -> str:
    """Axes larger than one, as `data 16, fsdp 8`."""
    named = [f"{axis} {size}" for axis, size in mesh.items() if size > 1]
    return ", ".join(named) or "one device"


def device_count(mesh: dict[str, int]) -> int:
    """The product of the sizes."""
    return math.prod(mesh.values())
