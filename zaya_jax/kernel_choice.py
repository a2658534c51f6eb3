"""Whether the kernels that a configuration insists on can run on this machine."""

from __future__ import annotations

from kernels_pallas.backend import KernelError, choose
from zaya_jax.config import ConfigError, Kernels


def check_kernels(field: str, kernels: Kernels) -> None:
    """Refuse kernels that this machine has no device or no table for, before anything is traced.

    Raises:
      ConfigError: names the field, the reason and what to use instead.
    """
    try:
        choose(kernels.value, field)
    except KernelError as error:
        raise ConfigError(str(error).replace("implementation=", "")) from None
