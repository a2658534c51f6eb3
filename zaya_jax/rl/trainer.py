"""One update of the policy from a batch of rollouts, however it is cut into microbatches.

    loss = sum over response tokens t of loss_weights_t * loss_t

The weights carry the denominators of the whole batch (`zaya_jax.rl.aggregation`), so that gradients
of microbatches are only added up; the optimiser sees them once. Balancing biases are frozen: moving
them would change the sampler's routes between two syncs without meaning anything to the gradient. A
gradient that is exactly zero (nothing to learn, or every token blocked) makes no update, for Muon
would blow rounding noise up to a full one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from zaya_jax.config import ModelConfig
from zaya_jax.model.transformer import Transformer
from zaya_jax.optimizer.create import create_optimizer
from zaya_jax.optimizer.settings import OptimizerConfig
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.log_probs import policy_forward
from zaya_jax.rl.losses import LOSSES, PolicyLossConfig, PolicyTokens
from zaya_jax.rl.packing import Rows
from zaya_jax.rl.policy_metrics import policy_metrics
from zaya_jax.rl.replay import FlipCounts, flip_counts
from zaya_jax.training.placement import Placement


@flax.struct.dataclass
class PolicyState:
    """What an update reads and writes.

    Attributes:
      step: updates made.
      params: float32 master weights.
      optimizer_state: the optimiser's moments and counts.
      balancing: `{"biases": …}`, frozen.
    """

    step: Int[Array, ""]
    params: Any
    optimizer_state: optax.OptState
    balancing: dict[str, Float[Array, "layers classes"]]

    @property
    def variables(self) -> dict[str, Any]:
        """What `Transformer.apply` takes."""
        return {"params": self.params, "balancing": self.balancing}


class MicrobatchReport(NamedTuple):
    """What a microbatch says besides its gradient."""

    loss: Float[Array, ""]
    log_probs: Float[Array, "rows seq"]
    entropy: Float[Array, "rows seq"]
    kept: Bool[Array, "rows seq"]
    flips: FlipCounts
    class_counts: Float[Array, "layers classes"]


@dataclasses.dataclass(frozen=True)
class PolicyTrainer:
    """Everything that decides an update; hashable, so that programs compile once."""

    model: ModelConfig
    optimizer: OptimizerConfig
    loss: PolicyLossConfig
    steps: int  # of the whole stage, for the learning-rate schedule
    placement: Placement  # of parameters, optimiser state and rows

    def init(self, variables: dict[str, Any]) -> PolicyState:
        """A state at step 0, where the placement wants it."""
        if self.placement.mesh is not None:
            variables = jax.device_put(variables, self.placement.shardings(variables))
        with self.placement.in_force():
            return _initial_state(self, variables)

    def gradients(
        self, state: PolicyState, microbatches: Sequence[Rows]
    ) -> tuple[Any, list[MicrobatchReport]]:
        """Sum of the gradients of all microbatches, and what each reports.

        Raises:
          RLError: without microbatches.
        """
        if not microbatches:
            raise RLError("no rollouts: there is nothing to train on")
        total, reports = None, []
        for rows in microbatches:
            with self.placement.in_force():
                gradient, report = policy_gradient(
                    self, state.params, state.balancing, self.placement.place_rows(rows)
                )
                total = gradient if total is None else _add(total, gradient)
            reports.append(report)
        return total, reports

    def update(
        self, state: PolicyState, microbatches: Sequence[Rows]
    ) -> tuple[PolicyState, dict[str, Any]]:
        """One update and its metrics. `microbatches` as `pack_rollouts` gives them."""
        gradient, reports = self.gradients(state, microbatches)
        norm = float(optax.tree.norm(gradient))
        if not np.isfinite(norm):
            raise RLError(
                f"the policy gradient is {norm} at step {int(state.step)}: stopping before the "
                "weights are lost; lower the learning rate, or look at the rollouts of this step"
            )
        if norm > 0:
            with self.placement.in_force():
                state = apply_gradient(self, state, gradient)
        else:
            state = dataclasses.replace(state, step=state.step + 1)
        metrics = batch_metrics(microbatches, reports, ratio_cap=self.loss.ratio_cap)
        return state, {**metrics, "grad_norm": norm, "skipped_update": float(norm == 0)}


def initial_state(trainer: PolicyTrainer, variables: dict[str, Any]) -> PolicyState:
    """A state at step 0; pure."""
    optimizer = create_optimizer(trainer.optimizer, trainer.steps)
    return trainer.placement.constrained(
        PolicyState(
            step=jnp.zeros((), jnp.int32),
            params=variables["params"],
            optimizer_state=optimizer.init(variables["params"]),
            balancing=variables["balancing"],
        )
    )


_initial_state = jax.jit(initial_state, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def policy_gradient(
    trainer: PolicyTrainer, params: Any, balancing: dict[str, Array], rows: dict[str, Array]
) -> tuple[Any, MicrobatchReport]:
    """Gradient of one microbatch's part of the loss, and what it reports.

    Args:
      trainer: static.
      params: of the policy.
      balancing: its biases.
      rows: one microbatch as `pack_rollouts` gives it.
    """
    model, config = trainer.model, trainer.loss

    def objective(params: Any) -> tuple[Array, MicrobatchReport]:
        forward = policy_forward(Transformer(model), params, balancing, rows)
        tokens = PolicyTokens(
            log_probs=forward.log_probs,
            rollout_log_probs=rows["rollout_log_probs"],
            advantages=rows["advantages"],
            mask=rows["mask"],
            segment_ids=rows["segment_ids"],
        )
        losses = LOSSES.resolve(config.kind)(tokens, config)
        loss = jnp.sum(rows["loss_weights"] * losses.loss)
        none = jnp.zeros(model.num_layers)
        flips = FlipCounts(none, none)
        if "routes" in rows:
            flips = flip_counts(forward.routing, balancing["biases"], rows["routes"])
        report = MicrobatchReport(
            loss=loss,
            log_probs=forward.log_probs,
            entropy=forward.entropy,
            kept=losses.kept,
            flips=flips,
            class_counts=forward.routing.class_counts,
        )
        return loss, jax.lax.stop_gradient(report)

    gradient, report = jax.grad(objective, has_aux=True)(params)
    return trainer.placement.constrained(gradient), report


@functools.partial(jax.jit, donate_argnums=0)
def _add(total: Any, gradient: Any) -> Any:
    return jax.tree.map(jnp.add, total, gradient)


@functools.partial(jax.jit, static_argnums=0)
def apply_gradient(trainer: PolicyTrainer, state: PolicyState, gradient: Any) -> PolicyState:
    """The optimiser's update by the gradient of a whole batch. `trainer` is static."""
    state = trainer.placement.at_work(state)
    optimizer = create_optimizer(trainer.optimizer, trainer.steps)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
    return trainer.placement.constrained(
        dataclasses.replace(
            state,
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            optimizer_state=optimizer_state,
        )
    )


def batch_metrics(
    microbatches: Sequence[Rows], reports: Sequence[MicrobatchReport], *, ratio_cap: float
) -> dict[str, Any]:
    """Figures of a whole batch, on the host in float64."""
    host = [jax.device_get(report) for report in reports]
    masks = [rows["mask"] for rows in microbatches]

    def gathered(name: str) -> np.ndarray:
        return np.concatenate([getattr(r, name)[m] for r, m in zip(host, masks, strict=True)])

    def of_rows(name: str) -> np.ndarray:
        return np.concatenate([r[name][m] for r, m in zip(microbatches, masks, strict=True)])

    flipped = sum(r.flips.flipped for r in host)
    replayed = sum(r.flips.replayed for r in host)
    counts = sum(r.class_counts for r in host)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=1)
    return {
        **policy_metrics(
            gathered("log_probs"),
            of_rows("rollout_log_probs"),
            of_rows("advantages"),
            gathered("kept"),
            ratio_cap=ratio_cap,
        ),
        "loss": float(sum(float(r.loss) for r in host)),
        "entropy": float(gathered("entropy").mean()),
        "flipped_routes": float(flipped.sum() / max(replayed.sum(), 1.0)),
        "load_entropy": (entropy / np.log(shares.shape[1])).tolist(),
        "response_tokens": int(sum(m.sum() for m in masks)),
    }
