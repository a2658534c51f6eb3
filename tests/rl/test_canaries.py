"""The repetition canary on streams of known redundancy, and the rare-token watch."""

from __future__ import annotations

import numpy as np
import pytest

from zaya_jax.rl.canaries import (
    RepetitionConfig,
    is_repetitive,
    lowest_compression_ratio,
    rare_token_shares,
)
from zaya_jax.rl.errors import RLError

VOCAB, LENGTH = 262_272, 4_096
CONFIG = RepetitionConfig()


def random_ids(count: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCAB, count).astype(np.int32)


def loop(period: int) -> np.ndarray:
    return np.resize(random_ids(period), LENGTH)


def ratio(tokens: np.ndarray, config: RepetitionConfig = CONFIG) -> float:
    return lowest_compression_ratio(tokens, config)


@pytest.mark.parametrize(
    ("tokens", "low", "high"),
    [  # zlib builds differ a little
        (np.full(LENGTH, 7, np.int32), 0.005, 0.03),
        (loop(10), 0.005, 0.05),
        (loop(100), 0.08, 0.3),
        (loop(191), 0.6, 1.0),  # beyond the 762 bytes that zlib looks back
        (random_ids(), 0.65, 0.95),
    ],
)
def test_ratios_lie_where_they_were_measured(tokens: np.ndarray, low: float, high: float) -> None:
    assert low < ratio(tokens) < high


def test_tight_loops_are_flagged_and_ordinary_streams_are_not() -> None:
    zipf = (np.random.default_rng(1).zipf(1.3, LENGTH) % VOCAB).astype(np.int32)
    assert is_repetitive(ratio(loop(8)), CONFIG)
    assert not is_repetitive(ratio(zipf), CONFIG)
    assert not is_repetitive(ratio(random_ids()), CONFIG)


def test_a_loop_anywhere_is_found() -> None:
    tokens = random_ids()
    tokens[2_000:3_300] = loop(5)[:1_300]
    assert is_repetitive(ratio(tokens), CONFIG)


def test_a_short_last_chunk_joins_the_one_before() -> None:
    # By itself the tail of a loop would be judged; joined to random tokens it is not one.
    tokens = np.concatenate([random_ids(1_024), np.zeros(100, np.int32)])
    assert ratio(tokens, RepetitionConfig(chunk_tokens=512)) > 0.5


def test_rollouts_shorter_than_a_chunk_are_not_judged() -> None:
    assert ratio(np.zeros(511, np.int32)) == 1.0
    assert ratio(np.zeros(0, np.int32)) == 1.0


def test_any_integer_dtype_gives_the_same_ratio() -> None:
    assert ratio(loop(50).astype(np.int64)) == ratio(loop(50))


def test_shares_of_rare_tokens_by_hand() -> None:
    shares = rare_token_shares([np.array([0, 89, 90, 95]), np.array([98, 99, 1, 2, 3, 4])], 100)
    assert shares == {"rare_top_10": 0.4, "rare_top_5": 0.3, "rare_top_2": 0.2, "rare_top_1": 0.1}
    assert set(rare_token_shares([], 100).values()) == {0.0}


@pytest.mark.parametrize(
    "fields", [{"window_bits": 8}, {"chunk_tokens": 4}, {"flag_below": 1.0}, {"level": 0}]
)
def test_impossible_settings_are_refused(fields: dict) -> None:
    with pytest.raises(RLError, match=next(iter(fields))):
        RepetitionConfig(**fields)
