"""Compiles Muon for eight simulated devices; `test_muon_sharded.py` starts it and reads its JSON.

The number of devices is fixed when JAX starts, so this is a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax.optimizer.muon import scale_by_muon
from zaya_jax.optimizer.settings import OptimizerConfig

CASES = {
    "layers and experts": ((2, 4), P("a", "b", None, None)),
    "experts over both": ((2, 4), P(None, ("a", "b"), None, None)),
    "columns over 2": ((2, 4), P(None, None, None, "a")),
    "columns over 8": ((2, 4), P(None, None, None, ("a", "b"))),
    "rows over 8": ((2, 4), P(None, None, ("a", "b"), None)),
    "rows over 4, columns over 2": ((2, 4), P(None, None, "b", "a")),
    "experts over 2, columns over 4": ((2, 4), P(None, "a", None, "b")),
}
SHAPE = (2, 8, 16, 32)


def main() -> None:
    rule = scale_by_muon(OptimizerConfig(kind="muon"))
    gradient = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)

    def two_steps(gradient: jax.Array) -> jax.Array:
        tree = {"down": gradient}
        _, state = rule.update(tree, rule.init(tree))
        return rule.update({"down": gradient[..., ::-1]}, state)[0]["down"]

    expected = np.asarray(jax.jit(two_steps)(jnp.asarray(gradient)))
    results = {}
    for name, (axes, spec) in CASES.items():
        mesh = Mesh(np.asarray(jax.devices()).reshape(axes), ("a", "b"), (AxisType.Auto,) * 2)
        sharding = NamedSharding(mesh, spec)
        step = jax.jit(
            lambda g: rule.update({"down": g}, rule.init({"down": g}))[0]["down"],
            in_shardings=sharding,
            out_shardings=sharding,
        )
        program = step.lower(jax.ShapeDtypeStruct(SHAPE, jnp.float32)).compile().as_text()
        collectives = re.findall(r"= \S+ (all-\w+|collective-permute|reduce-scatter)\(", program)
        full = jax.jit(two_steps, in_shardings=sharding, out_shardings=sharding)
        result = np.asarray(full(jax.device_put(gradient, sharding)))
        results[name] = {
            "difference": float(np.abs(result - expected).max()),
            "collectives": sorted(set(collectives)),
        }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
