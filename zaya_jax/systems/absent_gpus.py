"""GPUs that are not there, for XLA to compile for.

XLA's compilers for GPUs work from a description of the device: no GPU and no driver is asked. The
plugin of the platform has to be installed, and JAX has to accept it: the one for CUDA starts
anywhere (extra `aot`), the one for ROCm where ROCm 7 and a GPU are.
"""

from __future__ import annotations

import os

import jax
from jax.experimental import topologies

from zaya_jax.config import ConfigError
from zaya_jax.systems.hardware import Hardware

# The fields of XLA's GpuTargetConfigProto that lowering and memory depend on.
_DESCRIPTION = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: {warp}
  shared_memory_per_block: {shared_memory_by_default}
  shared_memory_per_core: {shared_memory}
  shared_memory_per_block_optin: {shared_memory}
  threads_per_core_limit: 2048
  core_count: {cores}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bytes_per_second}
  l2_cache_size: {l2_bytes}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory_bytes}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  {capability}
  runtime_version: "{version}"
  driver_version: "{version}"
}}
platform_name: "{platform}"
dnn_version_info {{ major: {dnn_major} minor: 0 patch: 0 }}
device_description_str: "{name}"
"""
_VERSIONS = {"cuda": ("12.9.0", 9), "rocm": ("7.0.0", 3)}
_INSTALL = {
    "cuda": "pip install 'zaya_jax[aot]'",
    "rocm": "use a machine with ROCm 7 and pip install 'zaya_jax[rocm]'",
}


def absent_devices(hardware: Hardware, count: int) -> list[jax.Device]:
    """That many devices of a kind, in nodes as large as the hardware's.

    Raises:
      ConfigError: when JAX has no compiler for them, or whole nodes do not make up `count`.
    """
    per_node = min(count, hardware.devices_per_node)
    if count % per_node:
        raise ConfigError(
            f"--devices={count}: must be a multiple of the {per_node} devices of a node"
        )
    platform = hardware.compiler["platform"]
    # Without a GPU there is no driver whose version could be checked.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    try:
        topology = topologies.get_topology_desc(
            platform=platform,
            topology_name=hardware.name,
            target_config=_description(hardware),
            topology=f"1x{count // per_node}x{per_node}",
        )
    except NotImplementedError as error:
        raise ConfigError(
            f"--compile=gpu: JAX has no compiler for {hardware.name} here ({error}); "
            f"{_INSTALL[platform]}"
        ) from error
    return list(topology.devices)


def _description(hardware: Hardware) -> str:
    facts = hardware.compiler
    version, dnn_major = _VERSIONS[facts["platform"]]
    if facts["platform"] == "cuda":
        major, minor = facts["architecture"].split(".")
        capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    else:
        capability = f'rocm_compute_capability {{ gcn_arch_name: "{facts["architecture"]}" }}'
    return _DESCRIPTION.format(
        warp=facts["warp"],
        shared_memory=facts["shared_memory"],
        shared_memory_by_default=min(
            facts["shared_memory"], 49_152 if facts["warp"] == 32 else 65_536
        ),
        cores=facts["cores"],
        l2_bytes=facts["l2_bytes"],
        clock_ghz=facts["clock_ghz"],
        bytes_per_second=int(hardware.peak_hbm_tb_s * 1e12),
        memory_bytes=int(hardware.memory_gb * 1e9),
        capability=capability,
        version=version,
        dnn_major=dnn_major,
        platform=facts["platform"].upper(),
        name=hardware.name,
    )
