"""Next-token loss of a batch, as sums that parts of a batch can be added up from.

    loss     = sum_t w_t * (-log p(target_t)) / sum_t w_t
    z_loss   = z_loss_weight * sum_t w_t * log(Z_t)^2 / sum_t w_t
    gradient = of the objective, loss + z_loss

w_t are the batch's `loss_weights`: 0 on padding and on tokens that are not to be learnt.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zaya_jax.model.transformer import Transformer
from zaya_jax.parallel.sharded_loss import cross_entropy_on_mesh

Batch = dict[str, Array]  # tokens, targets, positions, segment_ids, loss_weights: [batch, seq]


@flax.struct.dataclass
class LossSums:
    """Sums over the tokens of a batch, or of a part of one. All float32.

    Attributes:
      objective: weighted cross entropy plus z-loss; the one that carries gradients.
      loss: weighted cross entropy in nats.
      correct: weight of the tokens whose target was the most likely one.
      weight: total weight.
      tokens: real tokens, padding excluded.
      class_counts: real tokens per router class.
      residual_mean_square: mean square of the residual stream by depth, times `tokens`.
    """

    objective: Float[Array, ""]
    loss: Float[Array, ""]
    correct: Float[Array, ""]
    weight: Float[Array, ""]
    tokens: Float[Array, ""]
    class_counts: Float[Array, "layers classes"]
    residual_mean_square: Float[Array, " depth"]


def loss_sums(
    model: Transformer,
    params: Any,
    balancing: dict[str, Array],
    batch: Batch,
    *,
    z_loss_weight: float = 0.0,
) -> LossSums:
    """Runs the model and the fused head on one batch. No array [tokens, vocab] is kept."""
    variables = {"params": params, "balancing": balancing}
    states: Any = model.apply(
        variables,
        batch["tokens"],
        positions=batch["positions"],
        segment_ids=batch["segment_ids"],
        method=Transformer.hidden_states,
    )
    head: Any = model.apply(variables, method=Transformer.head)
    weight, bias = head
    sums = cross_entropy_on_mesh(
        states.final,
        weight,
        bias,
        batch["targets"],
        batch["loss_weights"],
        z_loss_weight=z_loss_weight,
        implementation=model.config.kernels.value,
    )
    tokens = jnp.sum(batch["segment_ids"] > 0).astype(jnp.float32)
    return LossSums(
        objective=sums.loss_sum,
        loss=jax.lax.stop_gradient(sums.loss_sum - sums.z_loss_sum),
        correct=jax.lax.stop_gradient(sums.correct_sum),
        weight=sums.weight_sum,
        tokens=tokens,
        class_counts=jax.lax.stop_gradient(states.routing.class_counts),
        residual_mean_square=jax.lax.stop_gradient(jnp.square(states.residual_rms)) * tokens,
    )
