"""Combinations known to fail on ROCm or in multi-process JAX, how to tell them, how to mend them.

Each rule cites where the problem is described. They were collected from reports; none was
reproduced here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from zaya_jax.systems.machine_facts import Facts


@dataclasses.dataclass(frozen=True)
class Problem:
    """A known-bad combination."""

    name: str
    applies: Callable[[Facts], bool]
    mend: str
    source: str


def version(text: str) -> tuple[int, ...]:
    """Numbers at the start of a version, for comparing; () where there is none."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def xla_flag(facts: Facts, name: str) -> str | None:
    """The value of an XLA flag in the environment; the last one counts, as XLA reads them."""
    found = re.findall(rf"--{name}(?:=(\S*))?(?=\s|$)", facts.environment.get("XLA_FLAGS", ""))
    return found[-1] if found else None


def _is_rocm(facts: Facts) -> bool:
    return bool(facts.rocm_version or facts.architecture)


def _mixed_visibility(facts: Facts) -> bool:
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    return all(facts.environment.get(name) for name in names)


def _unseen_restriction(facts: Facts) -> bool:
    """One process a device, and nothing that says which."""
    visible = any(
        facts.environment.get(name) for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    )
    return _is_rocm(facts) and facts.processes_per_node > 1 and not visible


def _command_buffers(facts: Facts) -> bool:
    value = xla_flag(facts, "xla_gpu_enable_command_buffer")
    affected = facts.architecture == "gfx950" or (7, 2) <= version(facts.rocm_version) < (7, 2, 1)
    return _is_rocm(facts) and affected and value != ""


def _plugin_skew(facts: Facts) -> bool:
    parts = [facts.versions.get(name) for name in ("jax-rocm7-plugin", "jax-rocm7-pjrt")]
    versions = {version(part)[:3] for part in parts if part}
    if len(versions) > 1:
        return True
    jaxlib = version(facts.versions.get("jaxlib", ""))[:2]
    return any(one[:2] != jaxlib for one in versions)


def _unset_on(*architectures: str, name: str) -> Callable[[Facts], bool]:
    return lambda facts: facts.architecture in architectures and name not in facts.environment


PROBLEMS: tuple[Problem, ...] = (
    Problem(
        "two layers choose the visible devices",
        _mixed_visibility,
        "set only one of ROCR_VISIBLE_DEVICES (physical) and HIP_VISIBLE_DEVICES (renumbered)",
        "jax-ml/jax#39602",
    ),
    Problem(
        "several processes on a node may each take every device",
        _unseen_restriction,
        "run one process a node, or set HIP_VISIBLE_DEVICES to the local rank before Python starts",
        "jax-ml/jax#26298, jax-ml/jax#27187",
    ),
    Problem(
        "this host resolves itself to loopback; as coordinator it would wait alone",
        lambda facts: facts.host_address.startswith("127.") and "SLURM_JOB_ID" in facts.environment,
        "give --coordinator an address other hosts reach, or mend /etc/hosts",
        "ROCm/MAD#228",
    ),
    Problem(
        "command buffers (HIP graphs) crash",
        _command_buffers,
        "add --xla_gpu_enable_command_buffer= to XLA_FLAGS (an empty list), or ROCm 7.2.1",
        "openxla/xla#46952, openxla/xla#40405",
    ),
    Problem(
        "autotuning is off: some default kernels overflow on fine-grained experts",
        lambda facts: _is_rocm(facts) and xla_flag(facts, "xla_gpu_autotune_level") == "0",
        "--xla_gpu_autotune_level=4; if kernels fail to load (hipError 98, 303) compare losses",
        "AMD Primus, env_spec.py; ROCm/rocm-jax#360",
    ),
    Problem(
        "grouped matrix products are padded and dense",
        lambda facts: _is_rocm(facts) and version(facts.versions.get("jaxlib", "")) < (0, 10),
        "jaxlib 0.10 or newer, or the Pallas experts of kernels_pallas",
        "openxla/xla#38088",
    ),
    Problem(
        "versions of the ROCm plugin do not fit each other or jaxlib",
        _plugin_skew,
        "install jax, jax-rocm7-plugin and jax-rocm7-pjrt of one version",
        "ROCm/TheRock#8163",
    ),
    Problem(
        "a library that the ROCm plugin opens is missing",
        lambda facts: _is_rocm(facts) and bool(facts.missing_libraries),
        "install rocm-smi-lib, rocprofiler-sdk and libdw1, or start from AMD's container",
        "ROCm/jax#268, ROCm/rocm-jax#200",
    ),
    Problem(
        "JAX cannot start its backend",
        lambda facts: facts.backend == "none",
        "read the error above; JAX_PLATFORMS=cpu tells whether the plugin is at fault",
        "ROCm/jax#268",
    ),
    Problem(
        "there is a GPU driver but JAX runs on the CPU",
        lambda facts: (
            bool(facts.driver)
            and facts.backend == "cpu"
            and facts.environment.get("JAX_PLATFORMS", "") != "cpu"
        ),
        "pip install 'zaya_jax[rocm]' or 'zaya_jax[cuda]'",
        "jax-ml/jax#25856",
    ),
    Problem(
        "a stray rccl-net plugin segfaults when devices first meet",
        lambda facts: facts.has_stray_net_plugin and "NCCL_NET_PLUGIN" not in facts.environment,
        "NCCL_NET_PLUGIN=none, or the plugin that fits this ROCm",
        "AMD Primus, bare-metal installation",
    ),
    Problem(
        "starting devices takes minutes without a word",
        _unset_on("gfx950", name="AMD_COMGR_NAMESPACE"),
        "AMD_COMGR_NAMESPACE=1",
        "ROCm/jax#800",
    ),
    Problem(
        "losses can become NaN through RCCL's warp speed",
        _unset_on("gfx950", name="RCCL_WARP_SPEED_AUTO"),
        "RCCL_WARP_SPEED_AUTO=0",
        "AMD Primus, env_spec.py",
    ),
    Problem(
        "reclaiming scratch memory slows every collective",
        _unset_on("gfx90a", "gfx942", name="HSA_NO_SCRATCH_RECLAIM"),
        "HSA_NO_SCRATCH_RECLAIM=1",
        "ROCm/rocm-systems#8657",
    ),
    Problem(
        "memory is left for neither RCCL nor hipBLASLt",
        lambda facts: float(facts.environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0")) > 0.97,
        "XLA_PYTHON_CLIENT_MEM_FRACTION=0.9: the fraction is of all memory",
        "jax-ml/jax#17426",
    ),
    Problem(
        "NUMA balancing moves pages under the devices",
        lambda facts: facts.numa_balancing and facts.backend == "gpu",
        "echo 0 > /proc/sys/kernel/numa_balancing",
        "AMD Instinct system validation",
    ),
)
