"""What is known of this machine: versions, devices, drivers, environment. Nothing is judged."""

from __future__ import annotations

import ctypes.util
import dataclasses
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

_PACKAGES = (
    "zaya_jax",
    "jax",
    "jaxlib",
    "jax-rocm7-plugin",
    "jax-rocm7-pjrt",
    "jax-cuda12-plugin",
    "flax",
    "orbax-checkpoint",
)
_LIBRARIES = ("rocm_smi64", "rocprofiler-sdk-attach", "dw")
_STRAY_NET_PLUGIN = Path("/usr/local/lib/librccl-net.so")


@dataclasses.dataclass(frozen=True)
class Facts:
    """One machine, as far as it can be asked. Tests make their own."""

    versions: Mapping[str, str]  # of Python and packages; packages not installed are left out
    backend: str  # "cpu", "gpu", or "none" when JAX cannot start
    backend_error: str  # why it cannot; "" otherwise
    devices: tuple[str, ...]  # kinds of the local devices, as JAX sees them
    architecture: str  # of the AMD devices: gfx942 is MI300X, gfx950 MI350; "" elsewhere
    rocm_version: str  # "" without ROCm
    driver: str  # of the kernel; "" when unknown
    environment: Mapping[str, str]
    missing_libraries: tuple[str, ...]  # that the ROCm plugin opens
    has_stray_net_plugin: bool  # an rccl-net library outside of ROCm
    host_address: str  # what this host's own name resolves to
    numa_balancing: bool
    processes_per_node: int


def gather() -> Facts:
    """Asks the machine; starts JAX's backend."""
    backend, error, devices = _ask_jax()
    return Facts(
        versions=_versions(),
        backend=backend,
        backend_error=error,
        devices=devices,
        architecture=_architecture(),
        rocm_version=_first_line(Path("/opt/rocm/.info/version")),
        driver=_first_line(Path("/sys/module/amdgpu/version"))
        or _first_line(Path("/sys/module/nvidia/version")),
        environment=dict(os.environ),
        missing_libraries=tuple(n for n in _LIBRARIES if ctypes.util.find_library(n) is None),
        has_stray_net_plugin=_STRAY_NET_PLUGIN.exists(),
        host_address=_host_address(),
        numa_balancing=_first_line(Path("/proc/sys/kernel/numa_balancing")) not in ("", "0"),
        processes_per_node=_processes_per_node(os.environ),
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _ask_jax() -> tuple[str, str, tuple[str, ...]]:
    try:
        import jax

        return jax.default_backend(), "", tuple(one.device_kind for one in jax.local_devices())
    except (ImportError, OSError, RuntimeError) as error:  # what a plugin that cannot load raises
        return "none", " ".join(str(error).split()), ()


def _architecture() -> str:
    command = shutil.which("rocminfo")
    if command is None:
        return ""
    done = subprocess.run([command], capture_output=True, text=True, timeout=60, check=False)
    words = [word for word in done.stdout.split() if word.startswith("gfx")]
    return words[0] if words else ""


def _first_line(path: Path) -> str:
    return path.read_text().splitlines()[0].strip() if path.is_file() else ""


def _host_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _processes_per_node(environment: Mapping[str, str]) -> int:
    for name in ("SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return 1
