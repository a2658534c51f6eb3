"""What a cascade found: every measurement in a table, and where the time went."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zaya_jax.evaluation.statistics import bootstrap_interval
from zaya_jax.training import metrics_file, report_page
from zaya_jax.training.report import write_page

FINISHED = "cascade_finished.json"
STAGE_HEAD = ("stage", "problems", "before", "interval", "after", "interval", "raised")
EVALUATION_HEAD = (
    "model or method",
    "task",
    "problems",
    "score",
    "interval",
    "seeds",
    "vote among the answers",
    "new tokens a problem",
)

Rows = list[tuple[str, ...]]


class StepResult(NamedTuple):
    """What one step left behind.

    Attributes:
      name: of the step.
      group: under which the report averages it with others; its own name if none.
      seconds: it ran, if it has finished.
      tasks: of its results.json, where it is an evaluation.
      solved: first and last measurement of each held-out source, where it is a stage of RL.
      has_page: whether it wrote a report.html of its own.
    """

    name: str
    group: str
    seconds: float
    tasks: list[dict[str, Any]]
    solved: dict[str, tuple[dict[str, Any], dict[str, Any]]]
    has_page: bool


def write_cascade_report(workdir: Path, groups: Mapping[str, str]) -> Path:
    """Writes `cascade.md` and `report.html` about steps; returns the page's path.

    Args:
      workdir: of the cascade.
      groups: the group of each step by its name; steps of one group differ by their seed alone.

    Raises:
      OSError: when a file cannot be written.
    """
    results = [_read(workdir / name, group) for name, group in groups.items()]
    stages = [row for result in results for row in stage_rows(result)]
    evaluations = evaluation_rows(results)
    text = f"{_markdown(STAGE_HEAD, stages)}\n{_markdown(EVALUATION_HEAD, evaluations)}"
    (workdir / "cascade.md").write_text(text, encoding="utf-8")
    lead = (
        "Intervals are bootstrap intervals over problems. A stage has raised what lies above the "
        "interval it began with."
    )
    body = "".join(
        (
            "<h1>Cascade</h1>",
            f'<p class="lead">{lead}</p>',
            report_page.section(
                "Stages of RL, on held-out problems of their own",
                [report_page.text_table("Solved", STAGE_HEAD, stages, False)],
            ),
            report_page.section(
                "Evaluations",
                [report_page.text_table("Results", EVALUATION_HEAD, evaluations, False)],
            ),
            report_page.section("Time", [_time(results)]),
            report_page.section("Pages of the steps", [_links(results)]),
        )
    )
    return write_page(workdir, workdir.resolve().name, body)


def stage_rows(result: StepResult) -> Rows:
    """What a stage of RL did to its own held-out problems."""
    return [
        (
            result.name,
            source,
            f"{first['solve_rate']:.1%}",
            f"{first['low']:.1%} to {first['high']:.1%}",
            f"{last['solve_rate']:.1%}",
            f"{last['low']:.1%} to {last['high']:.1%}",
            "yes" if last["solve_rate"] > first["high"] else "no",
        )
        for source, (first, last) in result.solved.items()
    ]


def evaluation_rows(results: Iterable[StepResult]) -> Rows:
    """A line for each task of each group, averaged over its steps."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        for task in result.tasks:
            found.setdefault((result.group, task["task"]), []).append(task)
    return [_evaluation(group, task, runs) for (group, task), runs in found.items()]


def _evaluation(group: str, task: str, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    scores = [run["score"] for run in runs]
    by_problem = np.array([[own["score"] for own in run["by_problem"]] for run in runs])
    low, high = bootstrap_interval(by_problem.mean(axis=0))
    votes = [list(run["majority_at"].values())[-1] for run in runs if run["majority_at"]]
    return (
        group,
        task,
        f"{runs[0]['problems']} x {runs[0]['tries']}",
        f"{np.mean(scores):.1%}",
        f"{low:.1%} to {high:.1%}",
        ", ".join(f"{score:.1%}" for score in scores) if len(runs) > 1 else "",
        f"{np.mean(votes):.1%}" if votes else "",
        f"{np.mean([run['new_tokens_per_problem'] for run in runs]):,.0f}",
    )


def _read(folder: Path, group: str) -> StepResult:
    mark, found = folder / FINISHED, folder / "results.json"
    seconds = json.loads(mark.read_text(encoding="utf-8"))["seconds"] if mark.exists() else 0.0
    tasks = json.loads(found.read_text(encoding="utf-8"))["tasks"] if found.exists() else []
    has_page = (folder / "report.html").exists()
    return StepResult(folder.name, group or folder.name, seconds, tasks, _solved(folder), has_page)


def _solved(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    if not (folder / metrics_file.FILE_NAME).exists():
        return {}
    found: dict[str, list[dict[str, Any]]] = {}
    for record in metrics_file.read_metrics(folder):
        if "solve_rate" in record:
            found.setdefault(record["source"], []).append(record)
    return {source: (records[0], records[-1]) for source, records in found.items()}


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows] if rows else []
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
