"""The real training step, partitioned by XLA over devices that are not there.

Nothing is allocated: the program is compiled and read. Virtual CPU devices need nothing else;
arguments and exchanges are those of any backend with the same partitioning, but temporary memory is
that of the CPU program, whose attention keeps its scores and whose bfloat16 products are widened.
For GPUs that are not there XLA's compiler for them makes the program they would run, our kernels in
it, and its temporary memory and its order of exchanges and work are theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from kernels_pallas.backend import Target, compile_for
from zaya_jax.config import ConfigError
from zaya_jax.systems.absent_gpus import absent_devices
from zaya_jax.systems.hardware import load_hardware
from zaya_jax.systems.hlo_traffic import Collective, collectives, hidden_share
from zaya_jax.training.dry_run import host_bytes_of_one_device
from zaya_jax.training.placement import choose_placement
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import abstract_batch, abstract_state
from zaya_jax.training.step import train_step

# Compiling well takes minutes longer and changes neither arguments nor exchanges.
_QUICKLY: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
# Tuning would run products on the device.
_UNTUNED: dict[str, str | bool] = {"xla_gpu_autotune_level": "0"}


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """What the compiled program says of one device."""

    argument_bytes: int  # state and batch
    temporary_bytes: int
    collectives: list[Collective]
    hidden_share: float  # of the bytes exchanged, sent while products or kernels run


def use_virtual_devices(count: int) -> None:
    """Makes JAX see that many CPU devices; call it before anything asks for a device.

    Raises:
      ConfigError: when devices were asked for before.
    """
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise ConfigError(f"--compile needs a process of its own: {error}") from error
    if jax.device_count() != count:
        raise ConfigError(
            f"--compile asked for {count} virtual devices, JAX has {jax.device_count()}; leave "
            "JAX_NUM_CPU_DEVICES and xla_force_host_platform_device_count alone"
        )


def compile_step(config: RunConfig, gpus: str = "", count: int = 1) -> CompiledStep:
    """Partitions and compiles the training step.

    Args:
      config: the run.
      gpus: compile for `count` of this hardware, which need not be there. Empty: for all devices
        that there are.
      count: number of GPUs.

    Raises:
      ConfigError: when mesh, model and batch do not fit the devices, and where there is no compiler
        for the GPUs.
    """
    devices = absent_devices(load_hardware(gpus), count) if gpus else None
    placement = choose_placement(
        config.mesh,
        config.model,
        batch_size=config.data.batch_size // config.train.microbatches,
        sequence_length=config.data.sequence_length,
        offload_moments=config.optimizer.offload_state,
        devices=devices,
    )
    state = placement.abstract(abstract_state(config))
    batch = placement.abstract_batch(abstract_batch(config.data))
    shardings = placement.shardings(state)
    if placement.mesh is None and devices is not None:
        state, batch = _on(devices[0], state), _on(devices[0], batch)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = jax.jit(
        placement.between_steps(functools.partial(train_step, config)),
        donate_argnums=0,
        out_shardings=None if shardings is None else (shardings, None),
    )
    with placement.in_force(), _kernels_for(gpus):
        lowered = step.lower(state, batch)
        compiled = lowered.compile(compiler_options=_UNTUNED if gpus else _QUICKLY)
    memory, program = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert program is not None
    # Programs for CPUs count what lies in host memory as the device's.
    on_host, counted_apart = host_bytes_of_one_device(state), memory.host_argument_size_in_bytes > 0
    mesh = {"data": 1} if placement.mesh is None else dict(placement.mesh.shape)
    return CompiledStep(
        argument_bytes=memory.argument_size_in_bytes - (0 if counted_apart else on_host),
        temporary_bytes=memory.temp_size_in_bytes,
        collectives=collectives(program, mesh),
        hidden_share=hidden_share(program, mesh),
    )


def _on(device: jax.Device, tree: Any) -> Any:
    """The arrays of a tree on that device, those in host memory in its host's."""

    def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        kind = None if leaf.sharding is None else leaf.sharding.memory_kind
        sharding = SingleDeviceSharding(device, memory_kind=kind)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(placed, tree)


def _kernels_for(gpus: str) -> AbstractContextManager[None]:
    return compile_for(Target(gpus)) if gpus else contextlib.nullcontext()
