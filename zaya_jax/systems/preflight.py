"""Checks every device before a job: products, copies, memory and an exchange among all.

    python -m zaya_jax.systems.preflight --least-tflops 600 --least-copy-gb-s 2000

The thresholds of the example are those of AMD Primus' node acceptance for MI300X. The status is 1
when a device fails; its number is printed, and the supervisor leaves it out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ConfigError
from zaya_jax.systems.collectives import measure
from zaya_jax.systems.command import make_parser
from zaya_jax.systems.exchanges import EXCHANGES
from zaya_jax.systems.timing import median_seconds
from zaya_jax.systems.uptime import EventLog

# Patterns that show bits stuck at 0 or 1, or coupled to a neighbour.
_PATTERNS = (0x00000000, 0xFFFFFFFF, 0xAAAAAAAA, 0x55555555)


class Fault(NamedTuple):
    """A device that failed a check."""

    device: int
    check: str
    detail: str


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    devices = jax.local_devices()
    faults = [
        fault
        for device in devices
        for fault in check_device(
            device,
            size=arguments.size,
            memory_bytes=arguments.memory_mb * 2**20,
            least_tflops=arguments.least_tflops,
            least_copy_gb_s=arguments.least_copy_gb_s,
        )
    ]
    if len(devices) > 1:
        found = measure(EXCHANGES["all-reduce"], devices, 2**20, repeats=1)
        if found.wrong_elements:
            faults.append(Fault(-1, "all-reduce", f"{found.wrong_elements} wrong elements"))
    facts = {"devices": len(devices), "faults": [fault._asdict() for fault in faults]}
    print(json.dumps(facts))
    return 1 if faults else 0


def check_device(
    device: jax.Device,
    *,
    size: int,
    memory_bytes: int,
    least_tflops: float,
    least_copy_gb_s: float,
) -> list[Fault]:
    """The faults of one device; empty for a healthy one."""
    faults = []
    number = device.id
    x = jax.device_put(_integers(size), device)
    product = jax.jit(lambda a: jnp.matmul(a, a.T, precision="highest"))
    exact = _integers(size)[:1] @ _integers(size).T
    if not np.array_equal(np.asarray(product(x)[:1]), exact):
        faults.append(Fault(number, "matrix product", "wrong numbers"))
    low = x.astype(jnp.bfloat16)
    rate = 2 * size**3 / median_seconds(lambda: product(low), 3) / 1e12
    if rate < least_tflops:
        faults.append(Fault(number, "matrix product", f"{rate:.3g} TFLOP/s < {least_tflops:g}"))
    block = jax.device_put(np.zeros(memory_bytes // 4, np.uint32), device)
    write = jax.jit(lambda old, pattern: old * jnp.uint32(0) + pattern, donate_argnums=0)
    for pattern in _PATTERNS:
        block = write(block, jnp.uint32(pattern))
        wrong = int(jnp.sum(block != jnp.uint32(pattern)))
        if wrong:
            faults.append(Fault(number, "memory", f"{wrong} words do not hold {pattern:#x}"))
    copy = jax.jit(lambda a: a ^ jnp.uint32(1))
    bandwidth = 2 * block.nbytes / median_seconds(lambda: copy(block), 3) / 1e9
    if bandwidth < least_copy_gb_s:
        faults.append(Fault(number, "copy", f"{bandwidth:.3g} GB/s < {least_copy_gb_s:g}"))
    return faults


def preflight_environment(
    workdir: Path, events: EventLog, options: Sequence[str] = ()
) -> dict[str, str]:
    """Runs the check in a process of its own; the variables that leave failing devices out.

    Raises:
      ConfigError: when it cannot run, no device is left, or the fault is in none of them alone.
    """
    command = [sys.executable, "-m", "zaya_jax.systems.preflight", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        facts = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise ConfigError(
            f"the check of devices did not run: {done.stderr.strip()[-300:]}"
        ) from None
    events.write("preflight", **facts)
    failed = {fault["device"] for fault in facts["faults"]}
    healthy = [number for number in range(facts["devices"]) if number not in failed]
    if -1 in failed or not healthy:
        raise ConfigError(f"devices of {workdir} fail their check: {facts['faults'][:3]}")
    if not failed:
        return {}
    listed = ",".join(map(str, healthy))
    return visible_devices(listed)


def visible_devices(listed: str) -> dict[str, str]:
    """The variable of this platform that limits what JAX sees."""
    is_rocm = Path("/dev/kfd").exists()
    return {"HIP_VISIBLE_DEVICES" if is_rocm else "CUDA_VISIBLE_DEVICES": listed}


def _integers(size: int) -> np.ndarray:
    """Small integers [size, size], whose products and sums are exact in float32."""
    return (np.arange(size * size) % 3).astype(np.float32).reshape(size, size)


def _parser() -> Parser:
    parser = make_parser(
        "preflight",
        "Checks every device: products, copies, memory and an exchange among all.",
        "--size 8192 --least-tflops 600 --least-copy-gb-s 2000",
    )
    parser.add_argument("--size", type=int, default=256, help="rows of the matrices")
    parser.add_argument("--memory-mb", type=int, default=16, help="memory written with patterns")
    parser.add_argument("--least-tflops", type=float, default=0.0, help="threshold, bfloat16")
    parser.add_argument("--least-copy-gb-s", type=float, default=0.0, help="threshold of copies")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
