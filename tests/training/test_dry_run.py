"""A dry run says what one device would hold, also of a mesh that is not there."""

from __future__ import annotations

import dataclasses

import pytest

from tests.training.tiny import MODEL, RUN
from zaya_jax.config import ConfigError, ExpertDispatch
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.training.dry_run import describe, plan

# Dense experts lower sooner; the sizes are the same.
QUICK = dataclasses.replace(
    RUN,
    model=MODEL.replace(expert_dispatch=ExpertDispatch.DENSE),
    data=dataclasses.replace(RUN.data, batch_size=32),
)


def test_one_of_many_devices_holds_its_part():
    whole = plan(dataclasses.replace(QUICK, mesh=MeshConfig(data=1)))
    mesh = MeshConfig(data=2, fsdp=4, expert=4)  # 32 devices, more than there are
    part = plan(dataclasses.replace(QUICK, mesh=mesh))
    assert whole["mesh"] == {}
    assert part["mesh"] == {"data": 2, "fsdp": 4, "expert": 4, "context": 1, "tensor": 1}
    assert part["bytes_per_device"]["batch"] == whole["bytes_per_device"]["batch"] // 32
    experts = 3 * MODEL.num_layers * MODEL.num_experts * 16 * 16 * 4  # bytes of all of them
    saved = whole["bytes_per_device"]["parameters"] - part["bytes_per_device"]["parameters"]
    assert saved >= experts * 15 // 16
    assert "mesh of 32 devices: data 2, fsdp 4, expert 4" in describe(part)


def test_offloaded_moments_are_the_hosts():
    optimizer = dataclasses.replace(QUICK.optimizer, offload_state=True)
    found = plan(dataclasses.replace(QUICK, mesh=MeshConfig(data=4, fsdp=8), optimizer=optimizer))
    assert found["bytes_per_device"]["optimizer"] == 8  # Adam's counter and the schedule's
    moments = found["host_bytes_per_device"]["optimizer"]
    assert moments == 2 * found["bytes_per_device"]["parameters"]
    assert "host memory for each device" in describe(found)
    found["host_bytes_per_device"]["optimizer"] = 0
    assert "host memory" not in describe(found)


def test_a_mesh_that_does_not_fit_is_refused_before_anything_is_lowered():
    with pytest.raises(ConfigError, match=r"model\.num_experts=4: .*mesh\.expert, which is 8"):
        plan(dataclasses.replace(QUICK, mesh=MeshConfig(data=1, expert=8)))
