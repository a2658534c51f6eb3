"""The time of a call on a device is the union of what its streams ran."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from kernels_pallas.backend import KernelError
from kernels_pallas.device_time import busy_seconds, seconds


def profile(*planes: str) -> jax.profiler.ProfileData:
    text = "\n".join(f"planes {{ {plane} }}" for plane in planes)
    data = jax.profiler.ProfileData
    return data.from_serialized_xspace(data.text_proto_to_serialized_xspace(text))


def line(name: str, *events: tuple[int, int]) -> str:
    """Events as (start, length) in microseconds."""
    written = " ".join(
        f"events {{ metadata_id: 1 offset_ps: {start}000000 duration_ps: {length}000000 }}"
        for start, length in events
    )
    return f'lines {{ name: "{name}" {written} }}'


def test_streams_that_overlap_count_once_and_gaps_not_at_all() -> None:
    gpu = 'name: "/device:GPU:0" '
    gpu += line("Stream #13", (0, 10), (30, 5)) + line("Stream #14", (8, 4), (31, 2))
    gpu += line("XLA Modules", (0, 100))
    host = 'name: "/host:CPU" ' + line("python", (0, 500))
    assert busy_seconds([profile(host, gpu)]) == pytest.approx(17e-6)
    slower = 'name: "/device:GPU:1" ' + line("Stream #13", (5, 40))
    assert busy_seconds([profile(gpu, slower)]) == pytest.approx(40e-6)


def test_a_profile_without_a_gpu_is_an_error() -> None:
    with pytest.raises(KernelError, match="the profiler recorded no kernel on a GPU"):
        busy_seconds([profile('name: "/host:CPU" ' + line("python", (0, 5)))])


def test_on_a_cpu_it_is_the_clock() -> None:
    assert seconds(lambda: jnp.zeros(1)) > 0
