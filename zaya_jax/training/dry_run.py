"""What a run would be, without allocating any of it: sizes, memory, groups, and the lowered step.

Works for models far larger than the machine: every array here is a shape.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax

from zaya_jax.model_size import (
    active_parameter_count,
    flops_per_token,
    parameter_count,
    training_flops_per_token,
)
from zaya_jax.optimizer.groups import optimizer_groups
from zaya_jax.optimizer.schedules import balancing_schedule, learning_rate_schedule
from zaya_jax.optimizer.settings import OptimizerKind
from zaya_jax.training.offload import HOST_MEMORY
from zaya_jax.training.placement import plan_placement
from zaya_jax.training.resolved import to_plain
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import abstract_batch, abstract_state
from zaya_jax.training.step import train_step


def plan(config: RunConfig) -> dict[str, Any]:
    """Resolved config, counts, bytes per device and optimiser groups; lowers the step to get there.

    Raises:
      ConfigError: for settings that do not fit together.
    """
    learning_rate_schedule(config.optimizer, config.train.steps)
    balancing_schedule(config.optimizer, config.train.steps)
    is_muon = config.optimizer.kind is OptimizerKind.MUON
    placement = plan_placement(
        config.mesh,
        config.model,
        batch_size=config.data.batch_size // config.train.microbatches,
        sequence_length=config.data.sequence_length,
        offload_moments=config.optimizer.offload_state,
    )
    state = placement.abstract(abstract_state(config))
    trained = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    batch = placement.abstract_batch(abstract_batch(config.data))
    step = jax.jit(placement.between_steps(functools.partial(train_step, config)), donate_argnums=0)
    with placement.in_force():
        lowered = step.trace(state, batch).lower(lowering_platforms=(jax.default_backend(),))
    sequence = config.data.sequence_length
    tokens_per_step = config.data.batch_size * sequence
    return {
        "config": to_plain(config),
        "parameters": {
            "total": parameter_count(config.model),
            "without embedding": parameter_count(config.model, embedding=False),
            "active, without emb.": active_parameter_count(config.model),
            **({"trained adapters": trained} if config.lora.rank else {}),
        },
        "flops": {
            "forward per token": flops_per_token(config.model, sequence),
            "training per token": training_flops_per_token(config.model, sequence),
            "training per step": training_flops_per_token(config.model, sequence) * tokens_per_step,
        },
        "tokens": {"per step": tokens_per_step, "whole run": tokens_per_step * config.train.steps},
        "mesh": {} if placement.mesh is None else dict(placement.mesh.shape),
        "bytes_per_device": {
            "parameters": bytes_of_one_device((state.params, state.base)),
            "gradients": bytes_of_one_device(state.params),
            "optimizer": bytes_of_one_device(state.optimizer_state),
            "balancing": bytes_of_one_device((state.balancing, state.balancing_optimizer_state)),
            "batch": bytes_of_one_device(batch),
        },
        "host_bytes_per_device": {"optimizer": host_bytes_of_one_device(state.optimizer_state)},
        "optimizer_groups": optimizer_groups(state.params, muon=is_muon),
        "lowered_step": {"characters_of_stablehlo": len(lowered.as_text())},
    }


def describe(plan: dict[str, Any]) -> str:
    """The plan as text for people; the config is left to config.json."""
    lines = ["parameters"]
    lines += [f"  {name:<22}{count:>22,}" for name, count in plan["parameters"].items()]
    lines += ["floating point operations"]
    lines += [f"  {name:<22}{count:>22.4g}" for name, count in plan["flops"].items()]
    lines += ["tokens"]
    lines += [f"  {name:<22}{count:>22,}" for name, count in plan["tokens"].items()]
    if plan["mesh"]:
        count = math.prod(plan["mesh"].values())
        axes = ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
        lines += [f"mesh of {count:,} devices: {axes}"]
    memory = plan["bytes_per_device"]
    lines += ["memory of one device, activations not counted"]
    lines += [f"  {name:<22}{readable(size):>22}" for name, size in memory.items()]
    lines += [f"  {'sum':<22}{readable(sum(memory.values())):>22}"]
    waiting = plan["host_bytes_per_device"]
    if any(waiting.values()):
        lines += ["host memory for each device"]
        lines += [f"  {name:<22}{readable(size):>22}" for name, size in waiting.items()]
    for group, names in plan["optimizer_groups"].items():
        lines += [group, *(f"  {name}" for name in names)]
    size = plan["lowered_step"]["characters_of_stablehlo"]
    lines += [f"the training step lowers to {size:,} characters of StableHLO"]
    return "\n".join(lines)


def bytes_of_one_device(tree: Any) -> int:
    """What one device holds of the leaves, which may be shapes with shardings."""
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree) if not _is_on_host(leaf))


def host_bytes_of_one_device(tree: Any) -> int:
    """What the host keeps for one device of the leaves."""
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree) if _is_on_host(leaf))


def _is_on_host(leaf: Any) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return sharding is not None and sharding.memory_kind == HOST_MEMORY


def _bytes(leaf: Any) -> int:
    return math.prod(_part(leaf)) * leaf.dtype.itemsize


def _part(leaf: Any) -> tuple[int, ...]:
    sharding = getattr(leaf, "sharding", None)
    return leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)


def readable(size: int) -> str:
    """Bytes in the unit that fits."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"
