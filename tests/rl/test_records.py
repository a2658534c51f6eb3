"""Rollouts check themselves and survive JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.rl.groups import group, rollout
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.records import RolloutGroup


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": np.zeros(0, np.int32)}, "2 prompt and 0 response tokens"),
        ({"log_probs": np.zeros(2, np.float32)}, "3 tokens has 2 log_probs"),
        ({"versions": np.zeros(4, np.int32)}, "3 tokens has 4 versions"),
        ({"log_probs": np.array([-1, np.nan, -1], np.float32)}, "log-probability is nan"),
        ({"log_probs": np.array([-1, 0.5, -1], np.float32)}, "log-probability is 0.5"),
        ({"reward": -1.0}, "reward is -1.0"),
    ],
)
def test_rollouts_that_do_not_fit_together_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(RLError, match=message):
        rollout(**fields)


def test_groups_survive_json() -> None:
    original = group([1.0, 0.0], started=3)
    plain = json.loads(json.dumps(original.to_plain()))
    restored = RolloutGroup.from_plain(plain)
    assert restored.to_plain() == original.to_plain()
    assert restored.rollouts[0].log_probs.dtype == np.float32
    np.testing.assert_array_equal(restored.rollouts[1].routes, original.rollouts[1].routes)
    without = RolloutGroup.from_plain(group([1.0, 0.0], routes=None).to_plain())
    assert without.rollouts[0].routes is None


def test_a_group_says_why_it_must_not_be_trained_on() -> None:
    assert group([1.0, 0.0]).check(2) is None
    assert group([1.0]).check(2) == "1 of 2 rollouts"
    assert group([0.0, 0.0], broken=True, reason="hung").check(2) == "a verifier failed: hung"
