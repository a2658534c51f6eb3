"""Sequences lie on devices so that causal attention has equally much to do on each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.parallel.context_order import in_balanced_order, in_sequence_order
from zaya_jax.parallel.mesh import build_mesh
from zaya_jax.parallel.settings import MeshConfig


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_each_device_holds_an_early_and_a_late_chunk(devices: int):
    mesh = build_mesh(MeshConfig(data=1, context=devices), jax.devices()[:devices])
    places = jnp.arange(2 * 4 * devices, dtype=jnp.int32)
    rows = jnp.stack([places, places + 100])[None]  # [1, batch, seq]
    with jax.set_mesh(mesh):
        balanced = jax.jit(lambda x: in_balanced_order(x, axis=2))(rows)
        back = jax.jit(lambda x: in_sequence_order(x, axis=2))(balanced)
    work = []
    for device, part in enumerate(np.split(np.asarray(balanced), devices, axis=2)):
        early, late = 4 * device, 4 * (2 * devices - 1 - device)
        expected = [*range(early, early + 4), *range(late, late + 4)]
        np.testing.assert_array_equal(part[0], [expected, np.add(expected, 100)])
        work.append(int(np.sum(part[0, 0] + 1)))  # keys that its queries see
    assert len(set(work)) == 1
    np.testing.assert_array_equal(back, rows)


def test_without_a_mesh_nothing_moves():
    tokens = jnp.arange(6)[None]
    assert in_balanced_order(tokens) is tokens
    assert in_sequence_order(tokens) is tokens
