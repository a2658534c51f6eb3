"""Reading a model out of a checkpoint, without the state of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from zaya_jax.checkpoint.manager import CheckpointError, read_arrays, read_json, saved_steps
from zaya_jax.checkpoint.manifest import find_damage, is_finished
from zaya_jax.config import ModelConfig
from zaya_jax.model.transformer import Transformer


def load_checkpoint(path: str | Path) -> tuple[ModelConfig, dict[str, Any]]:
    """The model saved at `path`.

    Args:
      path: a run's folder (its newest finished checkpoint is taken), a folder of checkpoints, or
        one checkpoint.

    Returns:
      The architecture, and `{"params": …, "balancing": {"biases": …}}` of float32 arrays.

    Raises:
      CheckpointError: when there is no checkpoint, or it is unfinished or damaged.
    """
    step_directory = find_checkpoint(Path(path))
    if not is_finished(step_directory):
        raise CheckpointError(f"{step_directory} was not completely written; choose another one")
    damage = find_damage(step_directory)
    if damage is not None:
        raise CheckpointError(f"{step_directory} is damaged: {damage}; choose another checkpoint")
    config = ModelConfig.from_dict(read_json(step_directory, "metadata")["config"]["model"])
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    template = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens)
    return config, read_arrays(step_directory, "variables", template)


def find_checkpoint(path: Path) -> Path:
    """The folder of one checkpoint: `path` itself, or the newest finished one below it.

    Raises:
      CheckpointError: when there is none.
    """
    if (path / "variables").is_dir():
        return path
    for directory in (path / "checkpoints", path):
        steps = saved_steps(directory)
        finished = [step for step in steps if is_finished(directory / str(step))]
        if finished:
            return directory / str(finished[-1])
    raise CheckpointError(
        f"{path} holds no finished checkpoint; give a run's --workdir or one of its checkpoints"
    )
