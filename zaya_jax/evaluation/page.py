"""The results as one self-contained HTML page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from zaya_jax.evaluation.summary import TaskSummary
from zaya_jax.training import report_page, report_plots
from zaya_jax.training.report_plots import LinePlot, Series

PLOT_GEOMETRY = {
    "WIDTH": report_plots.WIDTH,
    "LEFT": report_plots.LEFT,
    "RIGHT": report_plots.RIGHT,
}
_READING = (
    "score: mean over problems, with a bootstrap interval over them. avg, pass and majority @k: "
    "single answers, any of k right, a vote among k. tokens: new tokens of an answer. cut: answers "
    "that a budget ended."
)


def report_page_of(
    summaries: Sequence[TaskSummary],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    settings: dict[str, Any],
) -> str:
    """The page: tiles, the table, curves over k, every problem."""
    tiles = [
        (own.task, f"{100 * own.score:.1f}%", f"{100 * own.low:.1f} to {100 * own.high:.1f}%")
        for own in summaries
    ]
    plots = [report_plots.line_plot(_curves(own)) for own in summaries if own.answers > 1]
    body = "".join(
        (
            "<h1>Evaluation</h1>",
            f'<p class="lead">{html.escape(_READING)}</p>',
            report_page.tiles(tiles),
            report_page.section("Table", [report_page.text_table("All tasks", head, rows, False)]),
            report_page.section("More samples", plots) if plots else "",
            report_page.section("Problems", [_problems(own) for own in summaries]),
            report_page.section("Settings", [_settings(settings)]),
        )
    )
    return report_page.page("Evaluation - zaya_jax", body, PLOT_GEOMETRY)


def _curves(own: TaskSummary) -> LinePlot:
    ks = sorted({*own.pass_at, *own.majority_at})
    series = [Series("pass@k", [own.pass_at.get(k) for k in ks], "s1", has_markers=True)]
    if own.majority_at:
        votes = [own.majority_at.get(k) for k in ks]
        series.append(Series("maj@k", votes, "s2", has_markers=True))
    return LinePlot(
        own.task,
        "Any of k answers right, and a vote among k.",
        [float(k) for k in ks],
        series,
        x_label="k",
        percent=True,
    )


def _problems(own: TaskSummary) -> str:
    rows = [
        (p.id, f"{p.score:.3f}", f"{p.right} of {p.answers}", f"{p.mean_tokens:,.0f}", str(p.cut))
        for p in own.by_problem
    ]
    head = ("problem", "score", "right", "mean tokens", "cut")
    return report_page.text_table(own.task, head, rows, folded=len(rows) > 12)


def _settings(settings: dict[str, Any]) -> str:
    rows = [(name, json.dumps(value, ensure_ascii=False)) for name, value in settings.items()]
    return report_page.text_table("As resolved", ("name", "value"), rows, folded=True)
