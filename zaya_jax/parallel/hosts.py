"""Several processes as one JAX system: found from the scheduler, or said on the command line.

One process for each node, which drives all devices of the node, is the well-trodden way on AMD
machines. Where there is one process for each device instead, ROCm ignores the list of devices that
JAX passes on; `visible_device` says what must be in the environment before JAX starts.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost as orbax_multihost

from zaya_jax.config import ConfigError

_TIMEOUT_SECONDS = 300
_COMPILE_SECONDS = 3_600  # that processes wait for the slowest one to compile
_ROUND = 1_024  # bytes


@dataclasses.dataclass(frozen=True)
class Hosts:
    """How the processes of a run find each other."""

    coordinator: str = ""  # host:port of process 0; "" = from the scheduler
    processes: int = 0  # how many there are; 0 = from the scheduler
    process_id: int = -1  # which of them this is; -1 = from the scheduler

    @property
    def is_explicit(self) -> bool:
        """Whether the command line says it all."""
        return bool(self.coordinator)


def detect(environment: Mapping[str, str]) -> Hosts | None:
    """What a scheduler has set: SLURM, Kubernetes (an indexed job) or Open MPI. None: nothing.

    Raises:
      ConfigError: when a scheduler started several processes but does not say where the first is.
    """
    schedulers = (
        ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri"),
        ("JOB_COMPLETIONS", "JOB_COMPLETION_INDEX", "JOB_COORDINATOR"),
    )
    for count, rank, place in schedulers:
        if not environment.get(count, "").isdecimal() or int(environment[count]) < 2:
            continue
        if rank not in environment or place not in environment:
            missing = rank if rank not in environment else place
            raise ConfigError(
                f"{count}={environment[count]} but {missing} is not set; start the job with srun "
                "or mpirun, or give --coordinator, --processes and --process-id"
            )
        is_job = count == "JOB_COMPLETIONS"
        coordinator = environment[place] if is_job else ""
        return Hosts(coordinator, int(environment[count]), int(environment[rank]))
    return None


def initialize(hosts: Hosts, environment: Mapping[str, str]) -> None:
    """Joins the other processes; does nothing where there is one. Call it before any JAX device.

    Raises:
      ConfigError: when the settings contradict each other, or the others do not answer.
    """
    found = hosts if hosts.is_explicit else detect(environment)
    check(hosts)
    if found is None or found.processes < 2:
        return
    arguments: dict[str, object] = {"initialization_timeout": _TIMEOUT_SECONDS}
    if found.coordinator:
        arguments |= {
            "coordinator_address": found.coordinator,
            "num_processes": found.processes,
            "process_id": found.process_id,
            "cluster_detection_method": "deactivate",
        }
        check_coordinator(found)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(**arguments)  # type: ignore[arg-type]
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"process {found.process_id} of {found.processes} cannot join: {reason}"
        ) from error


def is_first_process() -> bool:
    """Whether this process writes what there is one of: metrics, config, report."""
    return jax.process_index() == 0


def any_process(here: bool) -> bool:
    """Whether something is so on any process; every process must ask at the same time."""
    if jax.process_count() == 1:
        return here
    return bool(multihost_utils.process_allgather(np.int32(here)).any())


def gather_texts(here: str) -> list[str]:
    """The text of every process, in their order; every process must ask at the same time."""
    if jax.process_count() == 1:
        return [here]
    wait_for_all("gather")  # on the coordinator, for as long as it takes
    content = np.frombuffer(here.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(content.size))
    rows = np.zeros(-(-int(sizes.max()) // _ROUND) * _ROUND, np.uint8)  # few programs
    rows[: content.size] = content
    gathered = np.asarray(multihost_utils.process_allgather(rows))
    return [row[:size].tobytes().decode() for row, size in zip(gathered, sizes, strict=True)]


def wait_for_all(place: str) -> None:
    """Returns when every process has come to this place, which each does once.

    Processes compile for unequally long, and a collective on CPUs gives up after 30 s; this waits
    on the coordinator instead.
    """
    if jax.process_count() > 1:
        barrier = orbax_multihost.get_barrier_sync_fn()
        assert barrier is not None
        barrier(key=f"zaya_jax {place}", timeout_ms=1_000 * _COMPILE_SECONDS)


def check(hosts: Hosts) -> None:
    """Refuses half of an explicit description.

    Raises:
      ConfigError: names what is missing or out of range.
    """
    given = (bool(hosts.coordinator), hosts.processes > 0, hosts.process_id >= 0)
    if any(given) and not all(given):
        raise ConfigError(
            f"--coordinator={hosts.coordinator!r}, --processes={hosts.processes}, --process-id="
            f"{hosts.process_id}: give all three or none"
        )
    if all(given) and hosts.process_id >= hosts.processes:
        raise ConfigError(
            f"--process-id={hosts.process_id}: must be below --processes={hosts.processes}"
        )
    if all(given) and not hosts.coordinator.rpartition(":")[2].isdecimal():
        raise ConfigError(f"--coordinator={hosts.coordinator!r}: must be HOST:PORT")


def check_coordinator(hosts: Hosts) -> None:
    """Refuses a first host that others would look for on themselves.

    Raises:
      ConfigError: when its name resolves to loopback here though it is a name.
    """
    name = hosts.coordinator.rpartition(":")[0]
    try:
        address = ipaddress.ip_address(socket.gethostbyname(name))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--coordinator={hosts.coordinator!r} cannot be found: {error}") from None
    is_said = name.startswith("127.") or name == "localhost"
    if address.is_loopback and not is_said:
        raise ConfigError(
            f"--coordinator={hosts.coordinator!r} is {address} here, so every process would wait "
            "for itself; give an address that other hosts reach, or mend /etc/hosts"
        )


def visible_device(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of one process a device, before Python starts.

    Empty for one process a node. ROCm numbers HIP_VISIBLE_DEVICES within ROCR_VISIBLE_DEVICES, so
    only one of the two may be set.

    Raises:
      ConfigError: when both are.
    """
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    if all(environment.get(name) for name in names):
        raise ConfigError(
            "ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES are both set, and the second counts "
            "within the first; set only one"
        )
    tasks = environment.get("SLURM_NTASKS_PER_NODE") or environment.get(
        "OMPI_COMM_WORLD_LOCAL_SIZE", "1"
    )
    local = environment.get("SLURM_LOCALID") or environment.get("OMPI_COMM_WORLD_LOCAL_RANK")
    is_restricted = any(environment.get(name) for name in names)
    if local is None or not tasks.isdecimal() or int(tasks) < 2 or is_restricted:
        return {}
    return {"HIP_VISIBLE_DEVICES": local}
