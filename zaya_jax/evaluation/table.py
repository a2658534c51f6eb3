"""The table of an evaluation as text, and its files: results.json, results.md, report.html."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zaya_jax.evaluation.page import report_page_of
from zaya_jax.evaluation.summary import TaskSummary, to_json

HEAD = (
    "task",
    "method",
    "problems",
    "score",
    "interval",
    "avg",
    "pass",
    "majority",
    "tokens",
    "p90",
    "cut",
    "faults",
)


def table_rows(summaries: Sequence[TaskSummary]) -> list[tuple[str, ...]]:
    """Cells of the table, one row for each task; shares in percent."""
    return [_row(summary) for summary in summaries]


def _row(own: TaskSummary) -> tuple[str, ...]:
    most_votes = max(own.majority_at, default=0)
    faults = [
        f"{_percent(share)} {name}"
        for name, share in (("refused", own.refused), ("broken", own.broken))
        if share
    ]
    return (
        own.task,
        own.method,
        f"{own.problems} x {own.tries}",
        _percent(own.score),
        f"{_percent(own.low)} - {_percent(own.high)}",
        f"{_percent(own.avg)} @{own.answers}",
        f"{_percent(own.pass_at[own.answers])} @{own.answers}",
        f"{_percent(own.majority_at[most_votes])} @{most_votes}" if most_votes else "-",
        f"{own.tokens['mean']:,.0f}",
        f"{own.tokens['p90']:,.0f}",
        _percent(own.cut),
        ", ".join(faults) or "-",
    )


def table_text(summaries: Sequence[TaskSummary]) -> str:
    """The table with aligned columns, in Markdown."""
    rows = [HEAD, *(tuple(c.replace("|", "\\|") for c in row) for row in table_rows(summaries))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def write_results(
    workdir: Path, summaries: Sequence[TaskSummary], settings: dict[str, Any]
) -> list[Path]:
    """Writes results.json, results.md and report.html; each is whole or not there.

    Raises:
      OSError: when one cannot be written.
    """
    content = {"settings": settings, "tasks": [to_json(summary) for summary in summaries]}
    files = {
        "results.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n",
        "results.md": table_text(summaries),
        "report.html": report_page_of(summaries, HEAD, table_rows(summaries), settings),
    }
    for name, text in files.items():
        temporary = workdir / f"{name}.partial"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(workdir / name)
    return [workdir / name for name in files]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
