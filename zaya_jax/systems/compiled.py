"""The real training step, partitioned by XLA over devices that are not there.

Virtual CPU devices stand for the real ones, and nothing is allocated: the program is compiled and
read. Arguments and exchanges are those of any backend with the same partitioning; temporary memory
is that of the CPU program, whose attention keeps its scores and whose bfloat16 products are
widened, so it is larger than on a GPU.
"""

from __future__ import annotations

import dataclasses
import functools

import jax

from zaya_jax.config import ConfigError
from zaya_jax.systems.hlo_traffic import Collective, collectives
from zaya_jax.training.placement import choose_placement
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import abstract_batch, abstract_state
from zaya_jax.training.step import train_step

# Compiling well takes minutes longer and changes neither arguments nor exchanges.
_QUICKLY: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """What the compiled program says of one device."""

    argument_bytes: int  # state and batch
    temporary_bytes: int  # of the CPU program
    collectives: list[Collective]


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


def compile_step(config: RunConfig) -> CompiledStep:
    """Partitions and compiles the training step over all devices there are.

    Raises:
      ConfigError: when mesh, model and batch do not fit the devices.
    """
    placement = choose_placement(
        config.mesh,
        config.model,
        batch_size=config.data.batch_size // config.train.microbatches,
        sequence_length=config.data.sequence_length,
    )
    state = placement.abstract(abstract_state(config))
    batch = placement.abstract_batch(abstract_batch(config.data))
    shardings = placement.shardings(state)
    step = jax.jit(
        functools.partial(train_step, config),
        donate_argnums=0,
        out_shardings=None if shardings is None else (shardings, None),
    )
    with placement.in_force():
        compiled = step.lower(state, batch).compile(compiler_options=_QUICKLY)
    memory, program = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert program is not None
    mesh = {"data": 1} if placement.mesh is None else dict(placement.mesh.shape)
    return CompiledStep(
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        collectives=collectives(program, mesh),
    )
