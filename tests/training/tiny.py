"""A run small enough for tests, and random batches for it."""

from __future__ import annotations

import dataclasses

import numpy as np

from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.config import ModelConfig
from zaya_jax.data.config import DataConfig
from zaya_jax.optimizer.settings import OptimizerConfig
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.training.settings import RunConfig, TrainConfig

MODEL = ModelConfig(
    vocab_size=272,
    hidden_size=16,
    num_layers=2,
    num_query_heads=2,
    num_kv_heads=1,
    head_dim=8,
    num_experts=4,
    expert_intermediate_size=16,
    router_hidden_size=8,
    max_position_embeddings=64,
    activation_dtype="float32",
)

RUN = RunConfig(
    model=MODEL,
    data=DataConfig(
        source="synthetic", max_bytes=60_000, tokenizer="bytes", sequence_length=24, batch_size=4
    ),
    optimizer=OptimizerConfig(peak_learning_rate=1e-2, final_learning_rate=1e-3, warmup_steps=2),
    train=TrainConfig(steps=40, sample_tokens=4),
    mesh=MeshConfig(data=1),  # tests have several devices
    checkpoint=CheckpointConfig(interval=4),
)


def with_train(**changes: object) -> RunConfig:
    """The tiny run with other fields of its train section."""
    return dataclasses.replace(RUN, train=dataclasses.replace(RUN.train, **changes))


def random_batch(seed: int = 0, batch: int = 4, seq: int = 24) -> dict[str, np.ndarray]:
    """Rows of two segments and some padding, each row with another amount of it."""
    random = np.random.default_rng(seed)
    segment_ids = np.ones((batch, seq), np.int32)
    positions = np.tile(np.arange(seq, dtype=np.int32), (batch, 1))
    for row in range(batch):
        second, end = seq // 3, seq - 3 * row
        segment_ids[row, second:] = 2
        positions[row, second:] -= second
        segment_ids[row, end:] = 0
        positions[row, end:] = 0
    return {
        "tokens": random.integers(0, 260, (batch, seq), dtype=np.int32),
        "targets": random.integers(0, 260, (batch, seq), dtype=np.int32),
        "positions": positions,
        "segment_ids": segment_ids,
        "loss_weights": (segment_ids > 0).astype(np.float32),
    }
