"""The lint finds what does not suit an accelerator and says why in numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.systems.test_plan import LARGE, MI300X, ONE, TINY
from zaya_jax.config import ConfigError
from zaya_jax.systems.hardware import load_hardware
from zaya_jax.systems.sizing import Finding, lint, main


def _broken(mesh: dict[str, int], hardware: Any = MI300X, **model: Any) -> dict[str, Finding]:
    config = dataclasses.replace(LARGE, model=LARGE.model.replace(**model))
    return {one.rule: one for one in lint(config, mesh, hardware) if not one.holds}


def test_the_8b_model_is_short_of_tokens_for_its_experts_and_nothing_else():
    found = _broken({**ONE, "data": 1_024})
    assert list(found) == ["an expert's product reaches the plateau"]
    text = found["an expert's product reaches the plateau"].arithmetic
    assert text.startswith("1,024 tokens on an expert x 16.8 MFLOP = 17.2 GFLOP")
    assert "200 GFLOP or 11,921 tokens" in text


@pytest.mark.parametrize(
    ("model", "arithmetic"),
    [
        ({"head_dim": 96}, "head_dim 96 = 1 x 64 + 32"),
        ({"vocab_size": 262_144 + 1}, "vocab_size 262,145 = 4,096 x 64 + 1"),
        ({"expert_intermediate_size": 2_000}, "expert_intermediate_size 2,000 = 7 x 256 + 208"),
    ],
)
def test_sizes_that_leave_matrix_units_empty_are_found(model: dict[str, int], arithmetic: str):
    assert arithmetic in [one.arithmetic for one in _broken({**ONE, "data": 8}, **model).values()]


def test_part_of_a_node_is_slow_where_links_join_pairs():
    mesh = {**ONE, "data": 32, "tensor": 2}
    rule = "exchanges over tensor use whole nodes"
    assert "1 x 64 x 0.7 = 45 of 314 GB/s" in _broken(mesh)[rule].arithmetic
    assert rule not in _broken(mesh, load_hardware("h200"))


def test_kv_heads_that_do_not_divide_are_found():
    assert (
        "2 KV heads / tensor 4"
        in _broken({**ONE, "data": 16, "tensor": 4})["KV heads divide over tensor ranks"].arithmetic
    )


def test_the_status_is_strict_only_when_asked(capsys: pytest.CaptureFixture[str]):
    command = ["--config", TINY, "--devices", "1", "--hardware", "mi300x"]
    assert main(command) == 0
    assert "8 = 0 x 64 + 8" in capsys.readouterr().out
    assert main([*command, "--strict"]) == 1


def test_devices_that_the_mesh_does_not_fit_are_refused():
    with pytest.raises(ConfigError, match="does not fit 3 devices"):
        main(["--config", TINY, "--devices", "3", "--config.mesh.fsdp=2"])
