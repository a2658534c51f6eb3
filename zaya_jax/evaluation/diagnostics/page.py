"""The diagnostics of a checkpoint as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import numpy as np

from zaya_jax.evaluation.diagnostics.agreement import Agreement
from zaya_jax.evaluation.diagnostics.expert_overlap import ExpertOverlap, mean_ratio
from zaya_jax.evaluation.diagnostics.needles import NeedleGrid
from zaya_jax.evaluation.diagnostics.scatter import probability_scatter
from zaya_jax.evaluation.page import PLOT_GEOMETRY
from zaya_jax.training import report_page, report_plots
from zaya_jax.training.report_plots import HeatMap, LinePlot, Series


def diagnostics_page(name: str, found: Mapping[str, Any]) -> str:
    """The page of whatever parts were computed.

    Args:
      name: of the checkpoint.
      found: results of "load", "overlap", "agreement" and "needles".
    """
    cards = [_CARDS[part](result) for part, result in found.items()]
    body = (
        f'<h1>Diagnostics</h1><p class="lead">{html.escape(name)}</p>'
        f"{report_page.tiles([tile for part, own in found.items() for tile in _tiles(part, own)])}"
        f'<div class="cards">{"".join(cards)}</div>'
    )
    return report_page.page("Diagnostics - zaya_jax", body, PLOT_GEOMETRY)


def _tiles(part: str, own: Any) -> list[tuple[str, str, str]]:
    if part == "load":
        entropy = own["load_entropy"]
        return [("load entropy", f"{np.mean(entropy):.4f}", f"least layer {min(entropy):.4f}")]
    if part == "overlap":
        inside, outside = mean_ratio(own.input_side), mean_ratio(own.output_side)
        return [("expert overlap", f"{inside:.2f} / {outside:.2f}", "input / output side")]
    if part == "agreement":
        return [
            ("KL sampler to trainer", f"{own.kl_k3:.2e}", f"{len(own.sampler):,} tokens"),
            ("Pearson r", f"{own.pearson:.6f}", f"{own.rollouts:,} rollouts"),
        ]
    return [("needles found", f"{100 * np.mean(own.found):.0f}%", "all lengths and depths")]


def _load(own: Mapping[str, list[float]]) -> str:
    depth = [float(i) for i in range(len(own["load_entropy"]))]
    names = {"load_entropy": "load entropy", "skip_share": "skip share"}
    series = [
        Series(label, own[name], f"s{i}", has_markers=True)
        for i, (name, label) in enumerate(names.items(), start=1)
    ]
    note = "H(p) / ln E of the experts' load, 1 is even; share of tokens that skip the experts."
    plot = LinePlot("Router load by layer", note, depth, series, x_label="layer", from_zero=True)
    return report_plots.line_plot(plot)


def _overlap(own: ExpertOverlap) -> str:
    depth = [float(i) for i in range(len(own.input_side))]
    series = [
        Series("input side", own.input_side, "s1", has_markers=True),
        Series("output side", own.output_side, "s2", has_markers=True),
        Series("random subspaces", [1.0] * len(depth), "level", is_dashed=True),
    ]
    note = f"Mean overlap of the leading {own.rank} singular directions of pairs of experts."
    return report_plots.line_plot(LinePlot("Expert overlap", note, depth, series, x_label="layer"))


def _agreement(own: Agreement) -> str:
    note = (
        "Tokens drawn by the engine, scored by the trainer with routes replayed. KL "
        f"{own.kl_k3:.2e} nats, r {own.pearson:.6f}, largest difference of log-probabilities "
        f"{own.largest:.2e}."
    )
    x, y = np.exp(own.sampler.astype(np.float64)), np.exp(own.trainer.astype(np.float64))
    title = "Sampler and trainer"
    return probability_scatter(title, note, x, y, x_label="sampler", y_label="trainer")


def _needles(own: NeedleGrid) -> str:
    rows = [list(row) for row in zip(*own.found, strict=True)]
    depths = ", ".join(f"{depth:.0%}" for depth in own.depths)
    return report_plots.heat_map(
        HeatMap(
            "Needles found",
            f"Share by length of the text. Depths from the top: {depths}.",
            [float(length) for length in own.lengths],
            rows,
            "depth",
            low=0.0,
            high=1.0,
            x_label="tokens",
        )
    )


_CARDS: dict[str, Any] = {
    "load": _load,
    "overlap": _overlap,
    "agreement": _agreement,
    "needles": _needles,
}
