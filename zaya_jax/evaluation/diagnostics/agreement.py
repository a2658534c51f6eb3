"""Do sampler and trainer agree? Probabilities of sampled tokens under both, routes replayed.

The engine draws responses at temperature 1 and reports each token's log-probability and routes; the
trainer's forward pass scores the same tokens with these routes. arXiv 2605.05365 aims at
KL <= 1.3e-4 and Pearson r > 0.9996 over 2,048 rollouts in bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from zaya_jax.config import ModelConfig
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.model.transformer import Transformer
from zaya_jax.rl.engine_sampler import EngineSampler
from zaya_jax.rl.log_probs import policy_forward
from zaya_jax.rl.packing import pack_rollouts
from zaya_jax.rl.policy_metrics import policy_metrics
from zaya_jax.rl.records import Rollout


class Agreement(NamedTuple):
    """Log-probabilities of the same tokens, and what they say together.

    Attributes:
      sampler: by the engine that drew them.
      trainer: by the trainer's forward pass.
      rollouts: how many.
      kl_k1: mean of sampler - trainer, nats per token.
      kl_k3: an estimate of the same divergence that is never negative.
      pearson: correlation of the probabilities.
      largest: difference of log-probabilities.
    """

    sampler: Float[np.ndarray, " tokens"]
    trainer: Float[np.ndarray, " tokens"]
    rollouts: int
    kl_k1: float
    kl_k3: float
    pearson: float
    largest: float


def sampler_agreement(
    config: ModelConfig,
    variables: dict[str, Any],
    prompts: Sequence[Sequence[int]],
    *,
    most_tokens: int,
    stop_token: int,
    engine_settings: EngineSettings | None = None,
    rows_at_once: int = 4,
    seed: int = 0,
) -> Agreement:
    """Draws one response to every prompt and scores it by the trainer.

    Args:
      config: architecture.
      variables: parameters and balancing biases, for both.
      prompts: token ids.
      most_tokens: of a response.
      stop_token: ends a response.
      engine_settings: sizes of the engine.
      rows_at_once: of one forward pass of the trainer.
      seed: of the first prompt's response; the next ones count on.

    Raises:
      RequestError: for a prompt that does not fit the engine.
    """
    engine = Engine(config, variables, None, engine_settings)
    sampler = EngineSampler(engine, stop_token=stop_token, most_tokens=most_tokens)
    drawn = sampler.sample(prompts, [seed + i for i in range(len(prompts))])
    rollouts = [
        Rollout(
            np.asarray(prompt, np.int32),
            own.tokens,
            own.log_probs,
            own.versions,
            own.routes,
            0.0,
            own.truncated,
        )
        for prompt, own in zip(prompts, drawn, strict=True)
    ]
    return compare(config, variables, rollouts, rows_at_once=rows_at_once)


def compare(
    config: ModelConfig,
    variables: dict[str, Any],
    rollouts: Sequence[Rollout],
    *,
    rows_at_once: int = 4,
) -> Agreement:
    """Scores recorded rollouts by the trainer's forward pass, their routes replayed."""
    nothing = np.zeros(len(rollouts), np.float32)
    longest = max(len(own.prompt) + len(own.tokens) - 1 for own in rollouts)
    microbatches = pack_rollouts(
        rollouts,
        nothing,
        nothing,
        row_length=longest,
        rows_per_microbatch=rows_at_once,
        layers=config.num_layers,
        num_experts=config.num_experts,
        replay=True,
    )
    sampled, scored = [], []
    for rows in microbatches:
        batch = {k: rows[k] for k in ("tokens", "targets", "positions", "segment_ids", "routes")}
        log_probs = np.asarray(_trainer(config, variables, batch))
        sampled.append(rows["rollout_log_probs"][rows["mask"]])
        scored.append(log_probs[rows["mask"]])
    sampler, trainer = np.concatenate(sampled), np.concatenate(scored)
    flags = np.ones(len(sampler), np.bool_)
    metrics = policy_metrics(
        trainer, sampler, np.zeros(len(sampler), np.float32), flags, ratio_cap=np.inf
    )
    return Agreement(
        sampler,
        trainer,
        len(rollouts),
        metrics["kl_k1"],
        metrics["kl_k3"],
        metrics["pearson"],
        float(np.abs(trainer - sampler).max()),
    )


@functools.partial(jax.jit, static_argnums=0)
def _trainer(
    config: ModelConfig, variables: dict[str, Any], batch: dict[str, Array]
) -> Float[Array, "batch seq"]:
    forward = policy_forward(
        Transformer(config), variables["params"], variables["balancing"], batch
    )
    return forward.log_probs
