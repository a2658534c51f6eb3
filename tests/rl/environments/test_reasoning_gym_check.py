"""Every data set of reasoning-gym, over all its levels, as often as a little time allows.

    python -m pytest -n 0 -m slow -s tests/rl/environments/test_reasoning_gym_check.py

The command that this tests takes a hundred times as long.
"""

from __future__ import annotations

import shutil

import pytest

from zaya_jax.rl.environments.reasoning_gym import ReasoningGym
from zaya_jax.rl.environments.reasoning_gym_check import Tried, main, try_all

pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)
CPU_SECONDS = 3.0  # of a data set; the fork that goes beyond is its last


@pytest.mark.slow
def test_own_answers_score_one_and_nonsense_nothing() -> None:
    gym = ReasoningGym()
    gym.close()
    faults = []
    for tried in try_all(gym.levels, samples=1_000, cpu_seconds=CPU_SECONDS, processes=1):
        print(tried, flush=True)
        faults.extend(tried.faults)
    assert faults == []


@pytest.mark.parametrize(
    ("name", "counts", "faults"),
    [
        ("chain_sum", {"good": 75, "slow": 25}, []),
        ("chain_sum", {"slow": 100}, ["chain_sum: slow (100 of 100)"]),
        ("chain_sum", {"good": 99, "refused": 1}, ["chain_sum: refused (1 of 100)"]),
        ("chain_sum", {"good": 99, "takes ''": 1}, ["chain_sum: takes '' (1 of 100)"]),
        ("chain_sum", {"no answer": 100}, ["chain_sum: no answer (100 of 100)"]),
        ("graph_color", {"no answer": 100}, []),
        ("jugs", {"good": 80, "refused": 20}, []),
        ("jugs", {"good": 50, "refused": 50}, ["jugs: refused (50 of 100)"]),
    ],
)
def test_what_should_not_happen_is_told_from_what_may(
    name: str, counts: dict[str, int], faults: list[str]
) -> None:
    assert Tried(name, number=100, counts=counts).faults == faults


def test_an_unknown_data_set_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--names", "chess"]) == 2
    assert "has no data set 'chess'" in capsys.readouterr().err
