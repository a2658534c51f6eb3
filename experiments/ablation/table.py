"""The table of a comparison: one row an arm, every number with its spread over seeds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.ablation.grid import Grid
from experiments.ablation.results import RunResult, Spread, balance_steps, first_step_at


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the seeds of one arm showed; differences and ratios are seed by seed."""

    arm: str
    learning_rate: float
    loss: Spread  # last validation loss
    difference: Spread  # of that loss from the baseline's
    steps_to_baseline: Spread  # until the baseline's last loss, over all steps; "" where never
    balanced: Spread  # steps until the load stays even
    rebalanced: Spread  # the same after the data were switched
    entropy: Spread  # load entropy over the last steps
    residual_growth: Spread  # RMS of the residual stream after the last layer over before the first


def summarise(grid: Grid, results: Mapping[str, Sequence[RunResult]]) -> list[Summary]:
    """A summary of every arm that has results; seeds that the baseline lacks are left out of pairs.

    Args:
      grid: the comparison.
      results: of each arm at its chosen learning rate, one per seed.
    """
    baseline = {result.seed: result for result in results.get(grid.baseline, ())}
    rows = []
    for arm, own in results.items():
        pairs = [(r, baseline[r.seed]) for r in own if r.seed in baseline]
        balance = [balance_steps(grid, result) for result in own]
        rows.append(
            Summary(
                arm=arm,
                learning_rate=own[0].learning_rate,
                loss=Spread.of([r.final_loss for r in own]),
                difference=Spread.of([r.final_loss - base.final_loss for r, base in pairs]),
                steps_to_baseline=Spread.of([_share_of_steps(r, base) for r, base in pairs]),
                balanced=Spread.of([start for start, _ in balance]),
                rebalanced=Spread.of([again for _, again in balance]),
                entropy=Spread.of([r.final_entropy for r in own]),
                residual_growth=Spread.of([r.residual_rms[-1] / r.residual_rms[0] for r in own]),
            )
        )
    return rows


def _share_of_steps(result: RunResult, baseline: RunResult) -> float | None:
    step = first_step_at(result.validation, baseline.final_loss)
    return None if step is None else step / baseline.validation.steps[-1]


def result_table(grid: Grid, rows: Sequence[Summary]) -> list[str]:
    """Markdown: mean [least, most] over seeds."""
    columns = [
        ("peak rate", lambda row: f"{row.learning_rate:g}"),
        ("validation loss", lambda row: shown(row.loss, ".4f")),
        (f"minus {grid.baseline}, by seed", lambda row: shown(row.difference, "+.4f")),
        (f"steps to its loss / {grid.baseline}'s", lambda row: shown(row.steps_to_baseline, ".2f")),
        (f"steps to entropy {grid.balance:g}", lambda row: shown(row.balanced, ".0f")),
    ]
    if grid.switch_step is not None:
        columns.append(("after the switch", lambda row: shown(row.rebalanced, ".0f")))
    columns += [
        ("last load entropy", lambda row: shown(row.entropy, ".4f")),
        ("residual RMS, out / in", lambda row: shown(row.residual_growth, ".2f")),
        ("seeds", lambda row: str(len(row.loss.values))),
    ]
    lines = ["| arm | " + " | ".join(name for name, _ in columns) + " |"]
    lines.append("| --- " * (len(columns) + 1) + "|")
    lines += [
        f"| {row.arm} | " + " | ".join(show(row) for _, show in columns) + " |" for row in rows
    ]
    return lines


def shown(spread: Spread, digits: str) -> str:
    """Mean [least, most]; where some seed has no number, what each has."""
    if spread.mean is None or spread.least is None or spread.most is None:
        each = ["never" if v is None else format(v, digits) for v in spread.values]
        return ", ".join(each) if set(each) != {"never"} else "never"
    if len(spread.values) == 1:
        return format(spread.mean, digits)
    return (
        f"{format(spread.mean, digits)} "
        f"[{format(spread.least, digits)}, {format(spread.most, digits)}]"
    )


def as_json(grid: Grid, sizes: Mapping[str, Any], rows: Sequence[Summary]) -> str:
    """Everything in the tables, for programs."""
    facts = {
        "question": grid.question,
        "baseline": grid.baseline,
        "seeds": list(grid.seeds),
        "match": grid.match.value,
        "arms": [{**dataclasses.asdict(row), **sizes[row.arm]} for row in rows],
    }
    return json.dumps(facts, indent=2, allow_nan=False) + "\n"
