"""Rollouts in rows: alignment by hand, nothing lost, nothing dependent on the cut."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rl.groups import rollout
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.packing import pack_rollouts
from zaya_jax.rl.records import Rollout
from zaya_jax.rl.replay import ROUTE_LIVE


def packed(rollouts: list[Rollout], **changes: object) -> list[dict[str, np.ndarray]]:
    settings = {
        "row_length": 8,
        "rows_per_microbatch": 2,
        "layers": 2,
        "num_experts": 4,
        "replay": True,
        **changes,
    }
    numbers = np.arange(1, len(rollouts) + 1)
    return pack_rollouts(rollouts, numbers.astype(float), numbers / 8, **settings)


def test_a_rollout_stands_where_it_is_predicted() -> None:
    one = rollout(prompt=3, length=2)
    [rows] = packed([one])
    x = np.concatenate([one.prompt, one.tokens])
    assert rows["tokens"][0].tolist() == [*x[:-1], 0, 0, 0, 0]
    assert rows["targets"][0].tolist() == [*x[1:], 0, 0, 0, 0]
    assert rows["positions"][0].tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    assert rows["segment_ids"][0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    # Position 2 holds the last prompt token and predicts the first of the response.
    assert rows["mask"][0].tolist() == [False, False, True, True] + [False] * 4
    np.testing.assert_array_equal(rows["rollout_log_probs"][0, 2:4], one.log_probs)
    np.testing.assert_array_equal(rows["routes"][:, 0, :4], one.routes.T)
    assert np.all(rows["routes"][:, 0, 4:] == ROUTE_LIVE)
    assert np.all(rows["routes"][:, 1] == ROUTE_LIVE)  # an empty row fills the microbatch
    assert not rows["mask"][1].any()


def test_best_fit_leaves_no_row_that_another_could_have_taken() -> None:
    lengths = [5, 3, 4, 4, 2]  # inputs of 5, 3, 4, 4, 2 tokens: 18 in rows of 8
    rollouts = [rollout(prompt=1, length=n, seed=n) for n in lengths]
    rows = np.concatenate([m["segment_ids"] for m in packed(rollouts)])
    assert sorted((rows > 0).sum(axis=1).tolist(), reverse=True) == [8, 8, 2, 0]
    assert rows.max() == 2


def test_a_rollout_goes_where_least_room_is_left() -> None:
    lengths = [8, 7, 4, 3, 2]  # into rows of 12: 8 + 4 and 7 + 3 + 2, not 7 + 4
    rollouts = [rollout(prompt=1, length=n, seed=n) for n in lengths]
    rows = np.concatenate([m["segment_ids"] for m in packed(rollouts, row_length=12)])
    assert (rows > 0).sum(axis=1).tolist() == [12, 12]


def test_every_response_token_is_there_once_with_its_sequences_numbers() -> None:
    rollouts = [rollout(prompt=1 + i % 3, length=1 + i % 4, seed=i) for i in range(11)]
    for rows_per_microbatch in (1, 3):
        parts = packed(rollouts, rows_per_microbatch=rows_per_microbatch)
        assert {m["tokens"].shape for m in parts} == {(rows_per_microbatch, 8)}
        found = sorted(
            (float(a), float(w), float(p))
            for m in parts
            for a, w, p in zip(
                m["advantages"][m["mask"]],
                m["loss_weights"][m["mask"]],
                m["rollout_log_probs"][m["mask"]],
                strict=True,
            )
        )
        expected = sorted(
            (float(i + 1), (i + 1) / 8, float(p))
            for i, r in enumerate(rollouts)
            for p in r.log_probs
        )
        assert found == expected


def test_replay_off_has_no_routes() -> None:
    assert "routes" not in packed([rollout(routes=None)], replay=False)[0]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(RLError, match="a rollout of 10 tokens does not fit a row of 8"):
        packed([rollout(prompt=5, length=5)])
    with pytest.raises(RLError, match="has no recorded routes"):
        packed([rollout(routes=None)])
