"""One update of the parameters and one of the balancing biases.

A step's batch is cut into microbatches that are scanned; their gradients add up before the
optimiser sees them. Every microbatch's loss is divided by the weight of the *whole* batch, so the
cut changes memory and rounding but not the update, however unevenly padding is spread.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from zaya_jax.model.transformer import Transformer
from zaya_jax.optimizer.balancing import balancing_optimizer, update_balancing
from zaya_jax.optimizer.create import create_optimizer
from zaya_jax.optimizer.schedules import learning_rate_schedule
from zaya_jax.training.loss import Batch, LossSums, loss_sums
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import TrainState, model_params


@flax.struct.dataclass
class StepMetrics:
    """What a step reports; stays on the device until somebody reads it. All float32.

    Attributes:
      loss: mean cross entropy over the batch's weight, in nats, before the update.
      accuracy: share of the weight whose target was the most likely token.
      tokens: real tokens in the batch.
      grad_norm: global norm of the gradient, before clipping.
      param_norm: global norm of the trained parameters, before the update.
      learning_rate: of this update.
      class_counts: real tokens per router class.
      residual_rms: of the residual stream by depth.
    """

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]
    tokens: Float[Array, ""]
    grad_norm: Float[Array, ""]
    param_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    class_counts: Float[Array, "layers classes"]
    residual_rms: Float[Array, " depth"]


def train_step(
    config: RunConfig, state: TrainState, batch: Batch
) -> tuple[TrainState, StepMetrics]:
    """One step. Pure; jit it with `state` donated.

    Args:
      config: the run; static.
      state: before the step.
      batch: int32 and float32 arrays [batch, seq], the batch divisible by the microbatches.
    """
    model = Transformer(config.model)
    grads, sums = _gradients(config, model, state, batch)

    optimizer = create_optimizer(config.optimizer, config.train.steps)
    updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.params)
    biases, balancing_optimizer_state = update_balancing(
        balancing_optimizer(config.optimizer, config.train.steps),
        state.balancing["biases"],
        state.balancing_optimizer_state,
        sums.class_counts,
    )
    new_state = dataclasses.replace(
        state,
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        optimizer_state=optimizer_state,
        balancing={"biases": biases},
        balancing_optimizer_state=balancing_optimizer_state,
    )
    schedule = learning_rate_schedule(config.optimizer, config.train.steps)
    weight = jnp.maximum(sums.weight, 1e-9)
    metrics = StepMetrics(
        loss=sums.loss / weight,
        accuracy=sums.correct / weight,
        tokens=sums.tokens,
        grad_norm=optax.tree.norm(grads),
        param_norm=optax.tree.norm(state.params),
        learning_rate=jnp.asarray(schedule(state.step), jnp.float32),
        class_counts=sums.class_counts,
        residual_rms=jnp.sqrt(sums.residual_mean_square / jnp.maximum(sums.tokens, 1.0)),
    )
    return new_state, metrics


def validation_step(
    config: RunConfig, variables: dict[str, Any], base: Any, batch: Batch
) -> LossSums:
    """Loss sums of one held-out batch. Pure; jit it.

    Args:
      config: the run; static.
      variables: of the state.
      base: of the state; None but in a LoRA run.
      batch: as for `train_step`.
    """
    params = model_params(config, variables["params"], base)
    return loss_sums(Transformer(config.model), params, variables["balancing"], batch)


def _gradients(
    config: RunConfig, model: Transformer, state: TrainState, batch: Batch
) -> tuple[Any, LossSums]:
    """Gradient of the mean loss of the whole batch, and the batch's sums."""
    total_weight = jnp.maximum(jnp.sum(batch["loss_weights"]), 1e-9)

    def objective(params: Any, part: Batch) -> tuple[Array, LossSums]:
        sums = loss_sums(
            model,
            model_params(config, params, state.base),
            state.balancing,
            part,
            z_loss_weight=config.train.z_loss_weight,
        )
        return sums.objective / total_weight, sums

    gradient = jax.grad(objective, has_aux=True)
    parts = config.train.microbatches
    if parts == 1:  # adding to zeros would cost a pass over all gradients
        return gradient(state.params, batch)

    # [batch, seq] -> [microbatches, batch / microbatches, seq]; every microbatch has rows of every
    # device, which hold runs of neighbouring rows
    split = {name: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1) for name, x in batch.items()}

    def add(total: Any, part: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradient(state.params, part)), None

    shapes = jax.eval_shape(gradient, state.params, {name: x[0] for name, x in split.items()})
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    (grads, sums), _ = jax.lax.scan(add, zeros, split)
    return grads, sums
