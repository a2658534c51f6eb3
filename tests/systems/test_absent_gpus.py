"""Programs for GPUs that are not there need a compiler, and whole nodes."""

from __future__ import annotations

import importlib.util

import pytest

from zaya_jax.config import ConfigError
from zaya_jax.systems.absent_gpus import absent_devices
from zaya_jax.systems.hardware import hardware_names, load_hardware


def test_devices_come_in_whole_nodes():
    with pytest.raises(ConfigError, match="--devices=12: must be a multiple of the 8 devices"):
        absent_devices(load_hardware("h200"), 12)


@pytest.mark.parametrize("name", hardware_names())
def test_without_a_compiler_the_error_says_what_to_install(name: str):
    if importlib.util.find_spec("jax_plugins"):
        pytest.skip("this JAX can compile for GPUs")
    with pytest.raises(ConfigError, match=r"--compile=gpu: JAX has no compiler .* pip install"):
        absent_devices(load_hardware(name), 8)
