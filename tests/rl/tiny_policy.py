"""A model small enough for tests, with routers that do choose, and packed batches for it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.training import tiny
from zaya_jax.config import ExpertDispatch
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.placement import Placement

MODEL = dataclasses.replace(
    tiny.MODEL, vocab_size=48, initializer_stddev=0.3, expert_dispatch=ExpertDispatch.DENSE
)
SKIP = MODEL.num_experts
ONE_DEVICE = Placement(MODEL, None)


@functools.cache
def variables(seed: int = 0) -> Any:
    """Parameters and balancing biases that let the skip class win now and then."""
    made: Any = jax.jit(Transformer(MODEL).init)(jax.random.key(seed), jnp.zeros((1, 2), jnp.int32))
    biases = jnp.zeros_like(made["balancing"]["biases"])
    return {"params": made["params"], "balancing": {"biases": biases}}


def packed_batch(lengths: list[list[int]], seq: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows that pack sequences of the given lengths; tokens are drawn per sequence in order."""
    random = np.random.default_rng(seed)
    shape = (len(lengths), seq)
    names = ("tokens", "targets", "positions", "segment_ids")
    batch = {name: np.zeros(shape, np.int32) for name in names}
    for row, parts in enumerate(lengths):
        start = 0
        for segment, length in enumerate(parts, start=1):
            drawn = random.integers(0, MODEL.vocab_size, length + 1)
            where = slice(start, start + length)
            batch["tokens"][row, where] = drawn[:-1]
            batch["targets"][row, where] = drawn[1:]
            batch["positions"][row, where] = np.arange(length)
            batch["segment_ids"][row, where] = segment
            start += length
    return batch
