"""A plan that does not fit says by how much, and what would make it fit does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.systems.test_plan import LARGE, MI300X, ONE
from zaya_jax.systems.mends import find_shortage
from zaya_jax.systems.mesh_search import evaluate
from zaya_jax.systems.plan import main

CONFIG = Path(__file__).parents[2] / "experiments" / "configs" / "zaya1_8b.py"
PLAN = ["--config", f"{CONFIG}:pretrain1", "--config.data.batch_size=256"]
PLAN += ["--hardware", "mi300x", "--devices", "16"]


def test_every_change_that_is_named_makes_it_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAN) == 0
    text = capsys.readouterr().out
    assert "GiB more than the 160.9 GiB (90% of its memory) that a plan fills; any of these" in text
    assert main([*PLAN, "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["shortage"]["changes"]
    assert changes == [
        "--config.model.remat=full",
        "--config.train.microbatches=2",
        "--devices=32",
    ]
    for change in changes:
        assert change in text
        assert main([*PLAN, "--json", change]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["shortage"], facts["meshes"][0]["fits"]) == (None, True)


def test_settings_are_joined_where_none_is_enough() -> None:
    config = dataclasses.replace(LARGE, data=dataclasses.replace(LARGE.data, batch_size=5))
    tight = dataclasses.replace(MI300X, memory_gb=125)
    shortage = find_shortage(config, 1, tight, evaluate(config, ONE, tight))
    assert shortage is not None
    assert shortage.changes == [
        "--config.model.remat=offload --config.optimizer.offload_state=True",
        "--devices=4 without --config.mesh",
    ]


def test_where_nothing_helps_the_model_or_the_hardware_is_at_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hopeless = ["--config", f"{CONFIG}:pretrain1", "--config.model.num_layers=8000"]
    hopeless += ["--config.data.batch_size=1"]
    assert main([*hopeless, "--hardware", "h200", "--devices", "1"]) == 0
    text = capsys.readouterr().out
    assert "that a plan fills; no setting makes it fit: take a smaller model, shorter seq" in text
