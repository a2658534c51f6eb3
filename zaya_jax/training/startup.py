"""How a run gets its first state: from its own checkpoint, another run's, or by initialisation.

The same command means "go on": a workdir with checkpoints is resumed from the newest intact one.
What would change the meaning of the saved state is refused; what only steers the rest of the run
(learning rate, number of steps, intervals) may change and is recorded as an event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh

from zaya_jax.checkpoint.adapter_reader import BASE_CHECKSUM
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.manager import CheckpointError, Found
from zaya_jax.checkpoint.tiers import TieredCheckpoints
from zaya_jax.config import ConfigError, ModelConfig, architecture_differences
from zaya_jax.data.pipeline import BatchIterator
from zaya_jax.lora import params_checksum
from zaya_jax.lora_settings import LoraConfig
from zaya_jax.parallel.mesh import AXIS_RULES
from zaya_jax.training.placement import Placement
from zaya_jax.training.resolved import setting_differences
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import (
    TrainState,
    abstract_state,
    init_state,
    seed_key_data,
    state_from_variables,
)

# Optimising the initialisation would take longer than running it unoptimised.
_RUNS_ONCE = {"xla_backend_optimization_level": "0"}


@dataclasses.dataclass(frozen=True)
class Resumption:
    """The checkpoint a run continues from, already found fit for this config."""

    step: int
    events: list[tuple[str, str]]  # (name, detail) for the metrics file


def find_resumption(
    config: RunConfig, checkpoints: TieredCheckpoints, placement: Placement | None = None
) -> Resumption | None:
    """Finds the checkpoint to continue from; reads its settings but no tensor. None: a new run.

    Without a placement this process must find whole arrays.

    Raises:
      CheckpointError: when all checkpoints are damaged.
      ConfigError: when the architecture differs from the saved one; lists the fields.
    """
    template = None if placement is None else lambda: saved_template(config, placement)
    found = checkpoints.find_latest(template)
    if found is None:
        return None
    saved = checkpoints.metadata(found.step)["config"]
    differences = architecture_differences(ModelConfig.from_dict(saved["model"]), config.model)
    if differences:
        raise ConfigError(
            "this workdir holds a run of another architecture (saved -> asked for): model."
            + ", model.".join(differences)
            + ". Use the saved settings or another --workdir"
        )
    # Checkpoints from before there were adapters do not say that they have none.
    changed = _lora_differences(saved.get("lora") or {"rank": 0}, config.lora)
    if changed:
        raise ConfigError(
            "this workdir holds a run with other adapters (saved -> asked for): lora."
            + ", lora.".join(changed)
            + ". Use the saved settings or another --workdir"
        )
    if found.step > config.train.steps:
        raise ConfigError(
            f"train.steps={config.train.steps}: this workdir is already at step {found.step}; "
            "ask for at least as many, or use another --workdir"
        )
    return Resumption(found.step, _events(config, saved, found))


def new_state(config: RunConfig, placement: Placement) -> TrainState:
    """The first state of a new run.

    Raises:
      CheckpointError: when `config.init_from` holds no usable checkpoint.
      ConfigError: when its architecture is another one.
    """
    rng = seed_key_data(config.train.seed)
    shardings = placement.shardings(abstract_state(config))
    if not config.init_from:
        initialise = jax.jit(
            lambda key: init_state(config, key),
            compiler_options=_RUNS_ONCE,
            out_shardings=shardings,
        )
        return initialise(rng)
    variables = _given_variables(config, placement)
    start = jax.jit(
        lambda tree, key: state_from_variables(config, tree, key), out_shardings=shardings
    )
    return start(variables, rng)


def _given_variables(config: RunConfig, placement: Placement) -> dict[str, Any]:
    """Parameters and biases of `config.init_from`."""
    assert not isinstance(placement.mesh, AbstractMesh)  # those allocate nothing
    rules = None if placement.mesh is None else AXIS_RULES
    saved_model, variables = load_checkpoint(config.init_from, placement.mesh, rules)
    differences = architecture_differences(_extended(saved_model, config.model), config.model)
    if differences:
        raise ConfigError(
            f"init_from={config.init_from!r} has another architecture (saved -> asked for): model."
            + ", model.".join(differences)
        )
    return variables


def base_record(state: TrainState) -> dict[str, int]:
    """What a LoRA run's checkpoints note of the frozen parameters; nothing in other runs."""
    if state.base is None:
        return {}
    return {BASE_CHECKSUM: int(jax.jit(params_checksum)(state.base))}


def _frozen_params(config: RunConfig, placement: Placement, saved: Mapping[str, Any]) -> Any:
    """A LoRA run's frozen parameters, read anew.

    Raises:
      CheckpointError: when they are gone, or not those the run began with.
    """
    params = _given_variables(config, placement)["params"]
    found = int(jax.jit(params_checksum)(params))
    if found != saved.get(BASE_CHECKSUM):
        raise CheckpointError(
            f"init_from={config.init_from!r} holds other parameters than those this run's adapters "
            "were trained on; put them back, or begin again in another --workdir"
        )
    return params


def restored_state(
    config: RunConfig,
    placement: Placement,
    checkpoints: TieredCheckpoints,
    step: int,
    batches: BatchIterator,
) -> TrainState:
    """The saved state, with the data stream moved to where the run left it.

    Raises:
      DataError: when the data, tokenizer or batch shape is not what the run began with.
      CheckpointError: when the tensors do not fit.
    """
    restored = checkpoints.restore(step, **saved_template(config, placement))
    batches.set_state(restored.data)
    base = None
    if config.lora.rank:
        base = _frozen_params(config, placement, checkpoints.metadata(step))
    state = TrainState(**restored.variables, **restored.training, base=base)
    if int(state.step) != step:
        raise CheckpointError(f"the checkpoint of step {step} says it is at step {int(state.step)}")
    return state


def _extended(saved: ModelConfig, current: ModelConfig) -> ModelConfig:
    """The saved model with this stage's context: a new stage may be longer, with other bases."""
    return saved.replace(
        max_position_embeddings=current.max_position_embeddings,
        rope_theta=current.rope_theta,
        sliding_rope_theta=current.sliding_rope_theta,
    )


def _lora_differences(saved: Mapping[str, Any], current: LoraConfig) -> list[str]:
    """Settings of adapters that may not change in a run, as "field: saved -> current"."""
    if not saved["rank"] and not current.rank:  # the rest says nothing
        return []
    asked = {**dataclasses.asdict(current), "targets": list(current.targets)}
    return [
        f"{name}: {saved.get(name)!r} -> {value!r}"
        for name, value in asked.items()
        if saved.get(name) != value
    ]


def saved_template(config: RunConfig, placement: Placement) -> dict[str, Any]:
    """Shapes and shardings of what a checkpoint holds, by its items."""
    template = placement.abstract(abstract_state(config))
    return {"variables": template.variables, "training": training_part(template)}


def training_part(state: TrainState) -> dict[str, Any]:
    """What a checkpoint holds besides the model's variables."""
    return {
        "step": state.step,
        "optimizer_state": state.optimizer_state,
        "balancing_optimizer_state": state.balancing_optimizer_state,
        "rng": state.rng,
    }


def _events(config: RunConfig, saved: dict[str, Any], found: Found) -> list[tuple[str, str]]:
    events = [("fallback", f"{line}; going back") for line in found.passed_over]
    changed = setting_differences(saved, config)
    detail = f"from the checkpoint of step {found.step}"
    if changed:
        detail += "; changed settings: " + ", ".join(changed)
    return [*events, ("resume", detail)]
