"""Diagnostics against cases whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rl.tiny_policy import MODEL, variables
from zaya_jax.evaluation.diagnostics import __main__ as command
from zaya_jax.evaluation.diagnostics.agreement import Agreement, compare, sampler_agreement
from zaya_jax.evaluation.diagnostics.expert_overlap import (
    ExpertOverlap,
    expert_overlap,
    overlap_ratio,
)
from zaya_jax.evaluation.diagnostics.needles import NeedleGrid
from zaya_jax.evaluation.diagnostics.page import diagnostics_page
from zaya_jax.evaluation.diagnostics.router_load import router_load, text_rows
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.rl.records import Rollout

SETTINGS = EngineSettings(
    slots=4, page_size=4, cache_tokens=256, prefill_chunk=16, prefill_rows=4, decode_steps=4
)


WIDTH = 12


def with_directions(directions: list[list[int]], side: str) -> np.ndarray:
    """One matrix for each expert whose leading singular directions are these unit vectors."""
    random, matrices = np.random.default_rng(0), []
    for chosen in directions:
        left = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))[0]
        strengths = np.full((WIDTH, 1), 1e-3)
        strengths[: len(chosen), 0] = [5.0, 6.0, 7.0][: len(chosen)]
        rest = [i for i in range(WIDTH) if i not in chosen]
        matrices.append(left @ (strengths * np.eye(WIDTH)[[*chosen, *rest]]))
    stacked = np.stack(matrices).astype(np.float32)
    return stacked if side == "input" else np.swapaxes(stacked, 1, 2)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(
    ("directions", "overlap"),
    [
        ([[0, 1, 2], [2, 0, 1]], 1.0),
        ([[0, 1, 2], [3, 4, 5]], 0.0),
        ([[0, 1, 2], [0, 4, 5], [0, 1, 7]], (1 / 3 + 2 / 3 + 1 / 3) / 3),
    ],
)
def test_overlap_is_the_share_of_common_directions(
    side: str, directions: list[list[int]], overlap: float
) -> None:
    ratio = overlap_ratio(with_directions(directions, side), rank=3, side=side)
    assert float(ratio) == pytest.approx(overlap * WIDTH / 3, abs=1e-3)


def test_random_experts_overlap_like_random_subspaces() -> None:
    weights = np.random.default_rng(1).standard_normal((12, 48, 24)).astype(np.float32)
    assert float(overlap_ratio(weights, rank=6, side="input")) == pytest.approx(1.0, abs=0.05)


def test_overlap_is_told_by_layer_and_refuses_what_cannot_be() -> None:
    config = MODEL.replace(num_experts=2, hidden_size=WIDTH, expert_intermediate_size=WIDTH)
    same, apart = [[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [3, 4, 5]]
    experts = {
        "gate_up": np.stack([with_directions(same, "input"), with_directions(apart, "input")]),
        "down": np.stack([with_directions(apart, "output"), with_directions(same, "output")]),
    }
    found = expert_overlap(config, {"params": {"layers": {"experts": experts}}}, 3)
    assert found.input_side == pytest.approx([4.0, 0.0], abs=1e-3)
    assert found.output_side == pytest.approx([0.0, 4.0], abs=1e-3)
    with pytest.raises(EvaluationError, match="rank=1000"):
        expert_overlap(config, {}, 1_000)


def test_text_is_cut_into_whole_rows() -> None:
    rows = text_rows([[1, 2, 3, 4, 5], [6], [7, 8]], 2, 5)
    assert rows.tolist() == [[1, 2], [3, 4], [7, 8]]
    assert text_rows([[1, 2, 3, 4]], 2, 1).tolist() == [[1, 2]]
    with pytest.raises(EvaluationError, match="no text fills a row"):
        router_load(MODEL, {}, text_rows([[1]], 2, 4))


@pytest.mark.slow
def test_load_counts_every_real_token_once() -> None:
    rows = np.random.default_rng(0).integers(4, 20, (5, 8)).astype(np.int32)
    whole = router_load(MODEL, variables(), rows, rows_at_once=4)
    alone = router_load(MODEL, variables(), rows, rows_at_once=1)
    for name, values in whole.items():
        assert values == pytest.approx(alone[name], abs=1e-6)
    assert all(0 <= entropy <= 1 for entropy in whole["load_entropy"])


@pytest.mark.slow
def test_engine_and_trainer_agree_and_a_doctored_engine_does_not() -> None:
    prompts = [[5, 6, 7], [7, 8, 9, 10, 11], [5]]
    found = sampler_agreement(
        MODEL,
        variables(),
        prompts,
        most_tokens=8,
        stop_token=3,
        engine_settings=SETTINGS,
        rows_at_once=2,
    )
    assert found.rollouts == 3
    assert len(found.sampler) >= 3
    assert found.largest < 1e-4
    assert abs(found.kl_k1) < 1e-4
    assert 0 <= found.kl_k3 < 1e-7
    assert found.pearson > 0.9999
    # A sampler that claims other probabilities is found out.
    routes = np.zeros((4, MODEL.num_layers), np.uint8)
    claimed = Rollout(
        np.array([5, 6, 7], np.int32),
        np.array([8, 9], np.int32),
        np.array([-0.01, -0.01], np.float32),
        np.zeros(2, np.int32),
        routes,
        0.0,
        True,
    )
    wrong = compare(MODEL, variables(), [claimed], rows_at_once=2)
    assert wrong.kl_k1 > 0.1


def results() -> dict[str, Any]:
    random = np.random.default_rng(0)
    log_probs = np.log(random.uniform(0.01, 1, 5_000)).astype(np.float32)
    return {
        "load": {"load_entropy": [0.99, 0.98], "skip_share": [0.0, 0.1]},
        "overlap": ExpertOverlap([1.4, 1.5], [1.6, 1.7], 4),
        "agreement": Agreement(log_probs, log_probs, 9, 0.0, 0.0, 1.0, 0.0),
        "needles": NeedleGrid([64, 128], [0.0, 0.5, 1.0], [[1.0, 1.0, 0.5], [0.0, 0.5, 1.0]]),
    }


def test_the_page_draws_all_parts_and_loads_nothing() -> None:
    page = diagnostics_page("<script>alert(1)</script>", results())
    for title in ("Router load", "Expert overlap", "Sampler and trainer", "Needles found"):
        assert title in page
    assert "<script>alert" not in page
    assert "://" not in page
    # A tenth is chosen for being farthest off, of the rest every second one.
    assert page.count("<circle") >= 2_000
    assert page.count('class="heat"') >= 4


def test_the_command_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: (lambda inputs, own=own: own) for name, own in results().items()}
    monkeypatch.setattr(command, "_PARTS", parts)
    monkeypatch.setattr(command, "find_tokenizer", lambda *arguments: None)
    monkeypatch.setattr(command, "load_checkpoint", lambda path: (MODEL, {}))
    options = ["--checkpoint", "x", "--output", str(tmp_path / "out")]
    assert command.main([*options, "--parts", "load,overlap,agreement,needles"]) == 0
    found = json.loads((tmp_path / "out" / "diagnostics.json").read_text())
    assert found["agreement"]["tokens"] == 5_000
    assert "sampler" not in found["agreement"]
    assert found["needles"]["lengths"] == [64, 128]
    with pytest.raises(EvaluationError, match="'loads' must be among"):
        command.main([*options, "--parts", "loads"])
