"""How long a device is busy with one call: from the profiler on a GPU, by the clock on a CPU.

A launch and the way back to the host take longer than many kernels run, so on a GPU the host's
clock says little. The profiler records every kernel with its start and length on the device; what
counts here is the union of those intervals, so that kernels that overlap are not counted twice and
gaps between kernels not at all.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from kernels_pallas.backend import KernelError


def seconds(run: Callable[[], Any]) -> float:
    """Time of one call, which must be compiled already.

    Raises:
      KernelError: when the profiler recorded nothing on the GPU.
    """
    if jax.default_backend() == "cpu":
        start = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        profiles = [
            jax.profiler.ProfileData.from_file(str(path))
            for path in Path(folder).rglob("*.xplane.pb")
        ]
        return busy_seconds(profiles)


def busy_seconds(profiles: Iterable[jax.profiler.ProfileData]) -> float:
    """Time in which at least one stream of the busiest GPU ran something.

    Raises:
      KernelError: when no GPU did.
    """
    busy = [
        _union(
            (event.start_ns, event.start_ns + event.duration_ns)
            for line in plane.lines
            if line.name.startswith("Stream")  # other lines say the same again by operation
            for event in line.events
        )
        for profile in profiles
        for plane in profile.planes
        if plane.name.startswith("/device:GPU:")
    ]
    if not any(busy):
        raise KernelError(
            "the profiler recorded no kernel on a GPU: it may lack permission to read the device's "
            "counters (NVIDIA: NVreg_RestrictProfilingToAdminUsers=0) or the CUPTI or rocprofiler "
            "library"
        )
    return max(busy) * 1e-9


def _union(intervals: Iterable[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
