"""What an RL stage would take, without allocating any of it: memory by category, lowered programs.

Works for models far larger than the machine: every array here is a shape.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax.inference.cache import bytes_per_sequence, bytes_per_token
from zaya_jax.model.transformer import Transformer
from zaya_jax.rl.packing import empty_rows
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.trainer import PolicyTrainer, apply_gradient, initial_state, policy_gradient
from zaya_jax.training.dry_run import bytes_of_one_device, host_bytes_of_one_device, readable
from zaya_jax.training.placement import plan_placement
from zaya_jax.training.settings import RunConfig

# What errors call the batch of a trainer's forward pass.
ROW_NAMES = ("rows_per_microbatch", "row_length")


def plan(config: RunConfig, setup: RLSetup) -> dict[str, Any]:
    """Sizes of a stage; lowers the gradient and the update to get there.

    Raises:
      ConfigError: for settings that do not fit together.
    """
    stage, model = setup.stage, config.model
    placement = plan_placement(
        config.mesh,
        model,
        batch_size=stage.rows_per_microbatch,
        sequence_length=stage.row_length,
        names=ROW_NAMES,
        others=setup.worker_devices,
        offload_moments=config.optimizer.offload_state,
    )
    trainer = PolicyTrainer(model, config.optimizer, setup.loss, config.train.steps, placement)
    variables = jax.eval_shape(
        lambda: Transformer(model).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    )
    state = placement.abstract(jax.eval_shape(lambda v: initial_state(trainer, v), variables))
    rows = placement.abstract_rows(
        empty_rows(
            stage.rows_per_microbatch,
            stage.row_length,
            model.num_layers if stage.router_replay else 0,
        )
    )
    platforms = (jax.default_backend(),)
    with placement.in_force():
        gradient = policy_gradient.trace(trainer, state.params, state.balancing, rows)
        update = apply_gradient.trace(trainer, state, placement.abstract(state.params))
        lowered = [one.lower(lowering_platforms=platforms) for one in (gradient, update)]
    return {
        "rollouts": {
            "in a batch": stage.prompts * stage.group_size,
            "most prompt tokens": setup.most_prompt_tokens,
            "most response tokens": setup.most_response_tokens,
            "tokens of a microbatch": stage.rows_per_microbatch * stage.row_length,
        },
        "mesh": {} if placement.mesh is None else dict(placement.mesh.shape),
        "trainer": {
            "parameters": bytes_of_one_device(state.params),
            "gradients": bytes_of_one_device(state.params),
            "optimizer": bytes_of_one_device(state.optimizer_state),
            "rows of a microbatch": bytes_of_one_device(rows),
        },
        "trainer_host": {"optimizer": host_bytes_of_one_device(state.optimizer_state)},
        "sampler": sampler_bytes(config, setup),
        "lowered": {
            "gradient": len(lowered[0].as_text()),
            "update": len(lowered[1].as_text()),
        },
    }


def sampler_bytes(config: RunConfig, setup: RLSetup) -> dict[str, int]:
    """What one engine holds: the weights in the sampler's precision and its caches."""
    model = config.model
    shapes = jax.eval_shape(
        lambda: Transformer(model).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    )
    itemsize = jnp.dtype(model.activation_dtype).itemsize
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"]))
    sizes = {"weights": parameters * itemsize}
    if setup.engine is not None:
        sizes["keys and values"] = setup.engine.cache_tokens * bytes_per_token(model)
        sizes["convolution states"] = setup.engine.slots * bytes_per_sequence(model)
    routes = setup.most_prompt_tokens + setup.most_response_tokens
    rollouts = setup.stage.prompts * setup.stage.group_size
    batches = 1 if setup.pipeline is None else setup.pipeline.buffer_batches
    sizes["recorded routes, host"] = (
        batches * rollouts * routes * model.num_layers * np.dtype(np.uint8).itemsize
    )
    return sizes


def describe(plan: dict[str, Any]) -> str:
    """The plan as text for people."""
    lines = ["rollouts"]
    lines += [f"  {name:<24}{count:>20,}" for name, count in plan["rollouts"].items()]
    if plan["mesh"]:
        count = math.prod(plan["mesh"].values())
        axes = ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
        lines += [f"mesh of {count:,} devices for training: {axes}"]
    for title, key in (
        ("memory of one training device, activations not counted", "trainer"),
        ("host memory for each training device", "trainer_host"),
        ("memory of one sampler, over all its devices", "sampler"),
    ):
        if not any(plan[key].values()):
            continue
        lines += [title]
        lines += [f"  {name:<24}{readable(size):>20}" for name, size in plan[key].items()]
    for name, size in plan["lowered"].items():
        lines += [f"the {name} lowers to {size:,} characters of StableHLO"]
    return "\n".join(lines)
