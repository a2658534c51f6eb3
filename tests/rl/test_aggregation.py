"""One denominator for the whole batch, however it is cut."""

from __future__ import annotations

import numpy as np
import pytest

from zaya_jax.rl.aggregation import Aggregation, token_weights
from zaya_jax.rl.errors import RLError

LENGTHS = np.array([3, 1, 0, 4])
LOSSES = [np.array([1.0, 2.0, 3.0]), np.array([10.0]), np.array([]), np.array([0.0, 1.0, 0.0, 1.0])]


@pytest.mark.parametrize(
    ("kind", "by_hand"),
    [
        (Aggregation.SEQ_MEAN_TOKEN_SUM_NORM, (6 + 10 + 0 + 2) / (4 * 8)),
        (Aggregation.SEQ_MEAN_TOKEN_SUM, (6 + 10 + 0 + 2) / 4),
        (Aggregation.SEQ_MEAN_TOKEN_MEAN, (2 + 10 + 0 + 0.5) / 4),
        (Aggregation.TOKEN_MEAN, 18 / 8),
    ],
)
def test_sums_equal_the_values_by_hand_and_do_not_depend_on_the_cut(
    kind: Aggregation, by_hand: float
) -> None:
    weights = token_weights(kind, LENGTHS, norm=8)
    parts = [float((w * x).sum()) for w, x in zip(weights, LOSSES, strict=True)]
    assert sum(parts) == pytest.approx(by_hand, abs=1e-12)
    assert (parts[0] + parts[3]) + (parts[1] + parts[2]) == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize(
    ("lengths", "norm", "message"),
    [
        (np.zeros(2, int), 1, "nothing to train on"),
        (np.array([], int), 1, "nothing to train on"),
        (np.array([3, -1]), 1, "must not be negative"),
        (np.array([3]), 0, "norm=0"),
    ],
)
def test_impossible_batches_are_refused(lengths: np.ndarray, norm: int, message: str) -> None:
    with pytest.raises(RLError, match=message):
        token_weights(Aggregation.SEQ_MEAN_TOKEN_SUM_NORM, lengths, norm=norm)


def test_the_norm_is_one_by_default() -> None:
    kind = Aggregation.SEQ_MEAN_TOKEN_SUM_NORM
    assert token_weights(kind, LENGTHS).tolist() == [0.25] * 4
    assert token_weights(kind, LENGTHS, norm=1).tolist() == [0.25] * 4
