"""Functions by name: duplicates are refused, a user's own come by import path."""

from __future__ import annotations

import numpy as np
import pytest

from zaya_jax.rl.advantages import ADVANTAGES
from zaya_jax.rl.advantages.dr_grpo import dr_grpo
from zaya_jax.rl.advantages.groups import RewardGroups
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.losses import LOSSES, LossKind
from zaya_jax.rl.registry import Registry


def doubled(rewards: RewardGroups) -> np.ndarray:
    return 2 * rewards.task


NOT_A_FUNCTION = 3


def test_a_second_function_of_one_name_is_refused() -> None:
    with pytest.raises(RLError, match="'maxrl' is registered already"):
        ADVANTAGES.register("maxrl", doubled)


def test_a_name_must_not_look_like_an_import_path() -> None:
    with pytest.raises(RLError, match="must not contain ':'"):
        Registry("loss").register("a:b", doubled)


def test_a_function_of_the_user_is_found_by_import_path() -> None:
    found = ADVANTAGES.resolve(f"{__name__}:doubled")
    assert found(RewardGroups(np.ones((1, 2)), np.zeros((1, 2)))).tolist() == [[2.0, 2.0]]
    assert ADVANTAGES.resolve("dr_grpo") is dr_grpo


def test_every_loss_kind_is_registered() -> None:
    assert LOSSES.names == sorted(LossKind)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("maxlr", "did you mean 'maxrl'"),
        ("zzz", "known: dr_grpo, grpo"),
        ("no_such_module:f", "cannot be imported"),
        (f"{__name__}:missing", "cannot be imported"),
        (f"{__name__}:NOT_A_FUNCTION", "is a int, not a function"),
        (":f", "cannot be imported"),
    ],
)
def test_a_wrong_name_is_one_clear_error(name: str, message: str) -> None:
    with pytest.raises(RLError, match=message):
        ADVANTAGES.resolve(name)
