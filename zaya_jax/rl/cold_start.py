"""A policy to begin with: imitation of demonstrations, by the same update as reinforcement.

loss_t = -log pi_t
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from zaya_jax.config import ModelConfig
from zaya_jax.optimizer.settings import OptimizerConfig
from zaya_jax.rl.aggregation import Aggregation, token_weights
from zaya_jax.rl.environments.protocol import Environment, Problem, sample_problem
from zaya_jax.rl.losses.tokens import PolicyLossConfig, PolicyTokens, TokenLosses, on_response
from zaya_jax.rl.packing import Rows, pack_rollouts
from zaya_jax.rl.records import Rollout
from zaya_jax.rl.trainer import PolicyTrainer
from zaya_jax.training.placement import Placement


class TaughtEnvironment(Environment, Protocol):
    """An environment with a teacher."""

    def demonstration(self, problem: Problem, *, right: bool) -> str:
        """What he answers, careful or not."""
        ...


@dataclasses.dataclass(frozen=True)
class ColdStart:
    """Imitation of a teacher before the first rollout.

    Attributes:
      steps: updates; 0 = none.
      batch: demonstrations in each.
      learning_rate: highest; it falls to a tenth along a cosine.
      right_share: how often the teacher is right, and so the solve rate reinforcement begins with.
      environments: whose problems the teacher answers.
    """

    steps: int
    batch: int
    learning_rate: float
    right_share: float
    environments: tuple[TaughtEnvironment, ...]


IMITATION = PolicyLossConfig(kind="zaya_jax.rl.cold_start:imitation")


def cold_start(
    config: ColdStart,
    model: ModelConfig,
    variables: dict[str, Any],
    *,
    encode: Callable[[str], Sequence[int]],
    encode_response: Callable[[str], Sequence[int]],
    row_length: int,
    rows: int,
    seed: int,
) -> tuple[dict[str, Any], list[float]]:
    """Variables after imitation, and the loss of every update in nats per token."""
    optimizer = OptimizerConfig(
        peak_learning_rate=config.learning_rate,
        final_learning_rate=0.1 * config.learning_rate,
        warmup_steps=min(20, config.steps // 2),
        weight_decay=0.0,
    )
    trainer = PolicyTrainer(model, optimizer, IMITATION, config.steps, Placement(model, None))
    state, losses = trainer.init(variables), []
    for step in range(config.steps):
        draw = random.Random(f"{seed} {step}")
        pairs = []
        for _ in range(config.batch):
            environment = draw.choice(config.environments)
            problem = sample_problem(environment, 0, draw.getrandbits(31))
            right = draw.random() < config.right_share
            answer = environment.demonstration(problem, right=right)
            pairs.append((encode(problem.prompt), encode_response(answer)))
        batch = demonstration_rows(pairs, model, row_length=row_length, rows=rows)
        state, metrics = trainer.update(state, batch)
        losses.append(metrics["loss"])
    return state.variables, losses


def imitation(tokens: PolicyTokens, config: PolicyLossConfig) -> TokenLosses:
    """Cross entropy of the demonstrated tokens."""
    del config
    log_probs = jnp.where(tokens.mask, tokens.log_probs, 0.0)
    return on_response(tokens, -log_probs, tokens.mask)


def demonstration_rows(
    demonstrations: Sequence[tuple[Sequence[int], Sequence[int]]],
    model: ModelConfig,
    *,
    row_length: int,
    rows: int,
) -> list[Rows]:
    """(prompt, response) pairs as one batch: the mean over all response tokens is minimised."""
    rollouts = [
        Rollout(
            prompt=np.array(prompt, np.int32),
            tokens=np.array(response, np.int32),
            log_probs=np.zeros(len(response), np.float32),
            versions=np.zeros(len(response), np.int32),
            routes=None,
            reward=1.0,
            truncated=False,
        )
        for prompt, response in demonstrations
    ]
    lengths = np.array([len(response) for _, response in demonstrations])
    return pack_rollouts(
        rollouts,
        np.ones(len(rollouts)),
        token_weights(Aggregation.TOKEN_MEAN, lengths),
        row_length=row_length,
        rows_per_microbatch=rows,
        layers=model.num_layers,
        num_experts=model.num_experts,
        replay=False,
    )
