"""Figures of a batch by hand."""

from __future__ import annotations

import numpy as np
import pytest

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.policy_metrics import policy_metrics


def test_equal_policies_have_ratio_one_and_no_divergence() -> None:
    same = np.log(np.array([0.5, 0.25]))
    metrics = policy_metrics(same, same, np.array([1.0, -1.0]), np.ones(2, bool), ratio_cap=2.0)
    assert (metrics["ratio_min"], metrics["ratio_max"], metrics["kl_k1"]) == (1, 1, 0)
    assert (metrics["kl_k3"], metrics["pearson"], metrics["blocked"]) == (0, 1, 0)


def test_figures_by_hand() -> None:
    old, new = np.array([0.5, 0.5, 0.1, 0.4]), np.array([0.25, 0.5, 0.3, 0.4])
    kept = np.array([True, True, False, False])
    metrics = policy_metrics(
        np.log(new), np.log(old), np.array([-1.0, 0.0, 1.0, 1.0]), kept, ratio_cap=2.0
    )
    assert metrics["kl_k1"] == pytest.approx(-(np.log(0.5) + np.log(3)) / 4)
    assert metrics["kl_k3"] == pytest.approx(((0.5 - 1 - np.log(0.5)) + (2 - np.log(3))) / 4)
    assert metrics["pearson"] == pytest.approx(np.corrcoef(old, new)[0, 1])
    assert metrics["ratio_capped"] == 0.25
    assert metrics["ratio_q50"] == pytest.approx(1.0)
    shares = [metrics[f"blocked{part}"] for part in ("", "_with_advantage", "_positive")]
    assert shares == [0.5, 2 / 3, 1.0]
    assert metrics["blocked_negative"] == 0.0


def test_an_empty_batch_is_refused() -> None:
    empty = np.zeros(0)
    with pytest.raises(RLError, match="no response tokens"):
        policy_metrics(empty, empty, empty, np.zeros(0, bool), ratio_cap=2.0)
