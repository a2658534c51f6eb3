"""The engine behind the sampler's methods: what it reports is what the trainer computes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rl.tiny_policy import MODEL, ONE_DEVICE, variables
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.optimizer.settings import OptimizerConfig
from zaya_jax.rl.engine_sampler import EngineSampler
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.losses import PolicyLossConfig
from zaya_jax.rl.packing import pack_rollouts
from zaya_jax.rl.records import Rollout
from zaya_jax.rl.trainer import PolicyTrainer

SETTINGS = EngineSettings(
    slots=4, page_size=4, cache_tokens=256, prefill_chunk=16, prefill_rows=4, decode_steps=4
)
PROMPTS = [[5, 6, 7], [7, 8, 9, 10, 11], [5]]


@pytest.mark.slow
def test_the_trainer_agrees_with_the_engine_under_replay() -> None:
    engine = Engine(MODEL, variables(), settings=SETTINGS)
    sampler = EngineSampler(engine, stop_token=3, most_tokens=8)
    drawn = sampler.sample(PROMPTS, [1, 2, 3])
    rollouts = [
        Rollout(np.array(p, np.int32), d.tokens, d.log_probs, d.versions, d.routes, 1.0, False)
        for p, d in zip(PROMPTS, drawn, strict=True)
    ]
    rows = pack_rollouts(
        rollouts,
        np.array([1.0, -1.0, 0.5]),
        np.full(3, 0.1),
        row_length=16,
        rows_per_microbatch=2,
        layers=MODEL.num_layers,
        num_experts=MODEL.num_experts,
        replay=True,
    )
    trainer = PolicyTrainer(MODEL, OptimizerConfig(), PolicyLossConfig(), 200, ONE_DEVICE)
    state, metrics = trainer.update(trainer.init(variables()), rows)
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-4)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert (metrics["blocked"], metrics["flipped_routes"]) == (0, 0)
    assert sampler.load_weights(state.variables) == sampler.version == 1
    assert set(sampler.sample(PROMPTS, [1, 2, 3])[0].versions.tolist()) == {1}


def test_an_engine_that_leaves_tokens_out_is_refused() -> None:
    engine = object.__new__(Engine)  # its sizes do not matter
    engine.tokenizer = load_tokenizer("bytes")
    with pytest.raises(RLError, match="must have no tokenizer"):
        EngineSampler(engine, stop_token=3, most_tokens=8)
