"""What a cascade found: every evaluation in one table, and where the time went."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zaya_jax.training import metrics_file, report_page
from zaya_jax.training.report import write_page

FINISHED = "cascade_finished.json"
HEAD = ("after", "task", "method", "problems", "score", "interval", "tokens of an answer")


class StepResult(NamedTuple):
    """What one step left behind.

    Attributes:
      name: of the step.
      seconds: it ran, if it has finished.
      tasks: of its results.json, where it is an evaluation.
      solved: first and last held-out solve rate by source, where it is a stage of RL.
      has_page: whether it wrote a report.html of its own.
    """

    name: str
    seconds: float
    tasks: list[dict[str, Any]]
    solved: dict[str, tuple[float, float]]
    has_page: bool


def write_cascade_report(workdir: Path, names: Sequence[str]) -> Path:
    """Writes `cascade.md` and `report.html` about these steps; returns the page's path.

    Raises:
      OSError: when a file cannot be written.
    """
    results = [_read(workdir / name) for name in names]
    rows = [row for result in results for row in _rows(result)]
    (workdir / "cascade.md").write_text(_markdown(rows), encoding="utf-8")
    lead = (
        "Each evaluation asks the same problems; intervals are bootstrap intervals over problems."
    )
    body = "".join(
        (
            "<h1>Cascade</h1>",
            f'<p class="lead">{lead}</p>',
            report_page.section(
                "What each step brought", [report_page.text_table("Results", HEAD, rows, False)]
            ),
            report_page.section("Time", [_time(results)]),
            report_page.section("Pages of the steps", [_links(results)]),
        )
    )
    return write_page(workdir, workdir.resolve().name, body)


def _read(folder: Path) -> StepResult:
    mark, found = folder / FINISHED, folder / "results.json"
    seconds = json.loads(mark.read_text(encoding="utf-8"))["seconds"] if mark.exists() else 0.0
    tasks = json.loads(found.read_text(encoding="utf-8"))["tasks"] if found.exists() else []
    has_page = (folder / "report.html").exists()
    return StepResult(folder.name, seconds, tasks, _solved(folder), has_page)


def _solved(folder: Path) -> dict[str, tuple[float, float]]:
    if not (folder / metrics_file.FILE_NAME).exists():
        return {}
    rates: dict[str, list[float]] = {}
    for record in metrics_file.read_metrics(folder):
        if "solve_rate" in record:
            rates.setdefault(record["source"], []).append(record["solve_rate"])
    return {source: (found[0], found[-1]) for source, found in rates.items()}


def _rows(result: StepResult) -> list[tuple[str, ...]]:
    solved = [
        (result.name, source, "held out", "", f"{last:.1%}", f"{first:.1%} before", "")
        for source, (first, last) in result.solved.items()
    ]
    return solved + [
        (
            result.name,
            task["task"],
            task["method"],
            f"{task['problems']} x {task['tries']}",
            f"{task['score']:.1%}",
            f"{task['low']:.1%} to {task['high']:.1%}",
            f"{task['tokens']['mean']:,.0f}",
        )
        for task in result.tasks
    ]


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _time(results: Sequence[StepResult]) -> str:
    whole = sum(result.seconds for result in results) or 1.0
    parts = [(r.name, r.seconds / whole, f"{r.seconds:,.0f} s") for r in results]
    return report_page.share_bar("Where the time went", f"{whole:,.0f} s in all.", parts)


def _links(results: Sequence[StepResult]) -> str:
    items = "".join(
        f'<li><a href="{html.escape(r.name)}/report.html">{html.escape(r.name)}</a></li>'
        for r in results
        if r.has_page
    )
    return f'<div class="card"><ul>{items}</ul></div>'
