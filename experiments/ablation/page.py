"""One self-contained page of curves, and one curve as an SVG file for documents."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments.ablation.grid import Grid
from experiments.ablation.results import Curve, RunResult
from zaya_jax.training import report_page, report_plots
from zaya_jax.training.report_plots import LinePlot, Series

_POINTS = 160  # most points of a line
_COLOURS = ("#2a78d6", "#d9662b", "#1a9b6c", "#7a55c7", "#b88400", "#c2407f")
_LEGEND_HEIGHT = 20

Results = Mapping[str, Sequence[RunResult]]


def curves(grid: Grid, results: Results) -> list[LinePlot]:
    """Lines are means over seeds, bands reach from the least seed to the most."""
    switch = f" The data are switched after step {grid.switch_step}." if grid.switch_step else ""
    return [
        LinePlot(
            "Validation loss",
            "Nats per token on the first source; mean and range over seeds." + switch,
            *_lines(results, lambda result: result.validation, 1),
        ),
        LinePlot(
            "Load entropy",
            f"1 is even; balanced from {grid.balance:g}. Mean over layers, then seeds." + switch,
            *_lines(results, lambda result: result.entropy, _POINTS),
        ),
        LinePlot(
            "Residual RMS by depth",
            "Before each layer and after the last, at the last step.",
            *_lines(results, _by_depth, 1),
            x_label="depth in layers",
        ),
    ]


def page(name: str, grid: Grid, results: Results, tables: Mapping[str, Sequence[str]]) -> str:
    """The page: question, tables, curves. `tables` are markdown rows by heading."""
    cards = [report_plots.line_plot(plot) for plot in curves(grid, results)]
    body = f'<h1>{html.escape(name)}</h1><p class="lead">{html.escape(grid.question)}</p>'
    for heading, rows in tables.items():
        head, _, *cells = [_cells(row) for row in rows]
        table = report_page.text_table(heading, head, cells, folded=False)
        body += report_page.section(heading, [table])
    body += report_page.section("Curves", cards)
    geometry = {
        "WIDTH": report_plots.WIDTH,
        "LEFT": report_plots.LEFT,
        "RIGHT": report_plots.RIGHT,
    }
    return report_page.page(f"{name} - zaya_jax", body, geometry)


def svg_file(plot: LinePlot) -> str:
    """The plot with its legend as a document of its own, in colours for light and dark grounds."""
    figure = report_plots.line_plot(plot)
    drawing = re.search(r"<svg [^>]*>(.*?)</svg>", figure, re.DOTALL)
    inner = drawing.group(1) if drawing else ""
    width, height = report_plots.WIDTH, report_plots.HEIGHT + _LEGEND_HEIGHT
    colours = "".join(f".s{i}{{--c:{colour}}}" for i, colour in enumerate(_COLOURS, start=1))
    style = (
        "text{font:11px sans-serif;fill:#888}.ty{text-anchor:end}.tx{text-anchor:middle}"
        f".grid{{stroke:#8884}}{colours}.line{{fill:none;stroke:var(--c);stroke-width:1.8}}"
        ".dashed{stroke-dasharray:6 4}.band,.dot{fill:var(--c)}.band{fill-opacity:.2}"
    )
    step = (width - report_plots.LEFT) / max(len(plot.series), 1)
    legend = "".join(
        f'<line class="line {s.style}{" dashed" if s.is_dashed else ""}" x1="{x:.0f}" '
        f'x2="{x + 16:.0f}" y1="{height - 8}" y2="{height - 8}"/>'
        f'<text x="{x + 20:.0f}" y="{height - 4}">{html.escape(s.name)}</text>'
        for i, s in enumerate(plot.series)
        for x in [report_plots.LEFT + i * step]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(plot.title)}"><style>{style}</style>{inner}{legend}</svg>\n'
    )


def _by_depth(result: RunResult) -> Curve:
    return Curve(tuple(range(len(result.residual_rms))), result.residual_rms)


def _lines(
    results: Results, curve_of: Callable[[RunResult], Curve], most: int
) -> tuple[list[float], list[Series]]:
    """Common x values and a series per arm; `most` > 1 averages over stretches of steps."""
    curves = {arm: [curve_of(result) for result in own] for arm, own in results.items()}
    steps = sorted({step for own in curves.values() for curve in own for step in curve.steps})
    size = max(1, -(-len(steps) // most)) if most > 1 else 1
    x = [float(steps[min(start + size, len(steps)) - 1]) for start in range(0, len(steps), size)]
    series = []
    for i, (arm, own) in enumerate(curves.items()):
        seeds = np.array([_on_grid(curve, steps, size) for curve in own])
        mean, low, high = (_drawable(f(seeds, axis=0)) for f in (np.mean, np.min, np.max))
        style = f"s{1 + i % len(_COLOURS)}"
        series.append(Series(arm, mean, style, low, high, most == 1, is_dashed=i >= len(_COLOURS)))
    return x, series


def _drawable(values: np.ndarray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _on_grid(curve: Curve, steps: Sequence[int], size: int) -> list[float]:
    """The curve's means over stretches of `size` of the steps; NaN where it has none."""
    known = dict(zip(curve.steps, curve.values, strict=True))
    values = [known.get(step, np.nan) for step in steps]
    return [float(np.mean(values[i : i + size])) for i in range(0, len(values), size)]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]
