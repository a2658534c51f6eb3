"""Small plots as inline SVG: lines over steps and a heat map. No drawing library, no network.

Colours come from the page's style sheet by class, so one drawing serves light and dark. The numbers
behind a plot travel with it as JSON, for the tooltip, and as a table of at most 25 rows.
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

Number = float | None  # None: nothing to draw here

# Drawing area in the units of the view box: a half-width card on a desktop, a phone's width alone.
WIDTH, HEIGHT = 480, 236
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 34

_TABLE_ROWS = 25
_HEAT_LEVELS = 40  # shades of the heat map; neighbours of one shade share a rectangle
_MOST_MARKERS = 30  # dots on one line; more would hide it
_LOG_RATIO = 50.0  # a logarithmic axis where the largest value exceeds the least this many times


@dataclasses.dataclass(frozen=True)
class Series:
    """One line of a plot over the plot's x values."""

    name: str
    values: Sequence[Number]
    style: str  # CSS class: s1 .. s6, or t0 .. t4 from faint to strong
    low: Sequence[Number] = ()  # with `high`: a faint band behind the line
    high: Sequence[Number] = ()
    has_markers: bool = False  # few values, joined over gaps, with dots where there is room
    is_dashed: bool = False  # for levels rather than measurements


@dataclasses.dataclass(frozen=True)
class LinePlot:
    """Several series over common x values."""

    title: str
    note: str  # what the plot shows and what to look for
    x: Sequence[float]
    series: Sequence[Series]
    x_label: str = "step"
    percent: bool = False  # label the y axis in percent
    from_zero: bool = False  # the y axis starts at 0


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """One shade per x value and row, from `low` (faint) to `high` (strong)."""

    title: str
    note: str
    x: Sequence[float]
    rows: Sequence[Sequence[Number]]  # [row][x]
    row_name: str
    low: float
    high: float
    x_label: str = "step"


def short_number(value: float, digits: int = 4) -> str:
    """A number for an axis or tile: 12.5k, 0.003, 1.2e-06."""
    size = abs(value)
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = 1e3 if suffix == "k" else limit
            return f"{value / scale:.{digits}g}{suffix}"
    return f"{value:.{digits}g}"


def tick_labels(ticks: Sequence[float], percent: bool = False) -> list[str]:
    """Labels with as many digits as it takes to tell neighbours apart, four at least."""
    labels: list[str] = []
    for digits in range(4, 16):
        labels = [
            f"{100 * tick:.{digits}g}%" if percent else short_number(tick, digits) for tick in ticks
        ]
        if len(set(labels)) == len(labels):
            break
    return labels


def line_plot(plot: LinePlot) -> str:
    """The plot as an HTML figure; says so where there is nothing to draw."""
    drawn = [series for series in plot.series if any(_is_drawn(v) for v in series.values)]
    if not drawn:
        return _figure(plot.title, plot.note, '<p class="none">not recorded in this run</p>')
    y_axis = _Axis.fit(_heights(drawn), HEIGHT - BOTTOM, TOP, from_zero=plot.from_zero)
    x_axis = _Axis.span(min(plot.x), max(plot.x), LEFT, WIDTH - RIGHT)
    parts = _grid(x_axis, y_axis, plot)
    parts += [_band(series, plot.x, x_axis, y_axis) for series in drawn]
    parts += [_line(series, plot.x, x_axis, y_axis) for series in drawn]
    data = {
        "x": [_rounded(x) for x in plot.x],
        "label": plot.x_label,
        "series": [[s.name, [_rounded(v) for v in s.values]] for s in drawn],
        "span": [x_axis.low, x_axis.high],
    }
    columns = [(s.name, s.values) for s in drawn]
    table = _table(plot.x_label, plot.x, columns)
    return _figure(plot.title, plot.note, _legend(drawn) + _svg(parts, data, plot.title) + table)


def heat_map(plot: HeatMap) -> str:
    """The heat map as an HTML figure, the first row at the top."""
    if not any(_is_drawn(v) for row in plot.rows for v in row):
        return _figure(plot.title, plot.note, '<p class="none">not recorded in this run</p>')
    x_axis = _Axis.span(0, len(plot.x), LEFT, WIDTH - RIGHT)
    row_height = (HEIGHT - BOTTOM - TOP) / len(plot.rows)
    parts = [
        _heat_row(row, TOP + i * row_height, row_height, x_axis, plot.low, plot.high)
        for i, row in enumerate(plot.rows)
    ]
    every = max(1, math.ceil(len(plot.rows) / 10))
    for i in range(0, len(plot.rows), every):
        y = TOP + (i + 0.5) * row_height
        parts.append(f'<text class="ty" x="{LEFT - 6}" y="{y + 4:.1f}">{i}</text>')
    for i in sorted({0, len(plot.x) // 2, len(plot.x) - 1}):
        x = x_axis.at(i + 0.5)
        label = short_number(plot.x[i])
        parts.append(f'<text class="tx" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}">{label}</text>')
    parts.append(_axis_name(plot.x_label))
    data = {
        "x": [_rounded(x) for x in plot.x],
        "label": plot.x_label,
        "rows": [[_rounded(v) for v in row] for row in plot.rows],
        "row": plot.row_name,
        "box": [TOP, HEIGHT - BOTTOM],
    }
    scale = (
        f'<p class="legend">{plot.low:.2g}<span class="scale"></span>{plot.high:.2g}'
        f"<span>rows: {html.escape(plot.row_name)}s, first at the top</span></p>"
    )
    columns = [(f"{plot.row_name} {i}", row) for i, row in enumerate(plot.rows)]
    table = _table(plot.x_label, plot.x, columns)
    return _figure(plot.title, plot.note, scale + _svg(parts, data, plot.title) + table)


def _heights(series: Sequence[Series]) -> list[float]:
    """What the y axis must hold: all lines, and bands as far as they do not dwarf the lines."""
    lines = [v for s in series for v in s.values if _is_drawn(v)]
    low, high = min(lines), max(lines)
    room = 2 * (high - low)
    bands = [v for s in series for v in (*s.low, *s.high) if _is_drawn(v)]
    return lines + [min(max(v, low - room), high + room) for v in bands]


@dataclasses.dataclass(frozen=True)
class _Axis:
    """Maps values to the view box."""

    low: float
    high: float
    start: float  # where `low` lies
    end: float  # where `high` lies
    is_log: bool = False

    @classmethod
    def span(cls, low: float, high: float, start: float, end: float) -> _Axis:
        """Exactly from low to high; a single value gets a unit of room."""
        return cls(low, high if high > low else low + 1, start, end)

    @classmethod
    def fit(cls, values: Sequence[float], start: float, end: float, from_zero: bool) -> _Axis:
        """Around the values, logarithmic where they span orders of magnitude."""
        low, high = min(values), max(values)
        if not from_zero and low > 0 and high / low > _LOG_RATIO:
            return cls(low / 1.1, high * 1.1, start, end, is_log=True)
        bottom = min(low, 0.0) if from_zero else low
        margin = (high - bottom) * 0.06 or abs(high) * 0.1 or 1.0
        floor = 0.0 if low >= 0 else -math.inf  # an axis of positive values never shows negative
        bottom = bottom if from_zero and low >= 0 else max(bottom - margin, floor)
        return cls(bottom, high + margin, start, end)

    def at(self, value: float) -> float:
        """The place of a value, kept inside the axis."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """About `count` round numbers inside the axis."""
        if self.is_log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            digits = (1, 2, 5) if len(decades) <= 4 else (1,)
            candidates = [digit * 10.0**decade for decade in decades for digit in digits]
            return [t for t in candidates if self.low <= t <= self.high]
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(d * power for d in (1, 2, 2.5, 5, 10) if d * power >= rough * 0.999)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [i * step for i in range(first, last + 1)]


def _grid(x_axis: _Axis, y_axis: _Axis, plot: LinePlot) -> list[str]:
    left, right = LEFT, WIDTH - RIGHT
    parts = []
    ticks = y_axis.ticks(5)
    for tick, label in zip(ticks, tick_labels(ticks, plot.percent), strict=True):
        y = y_axis.at(tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="ty" x="{LEFT - 6}" y="{y + 4:.1f}">{label}</text>')
    for tick in x_axis.ticks(5):
        if tick == round(tick):
            x, label = x_axis.at(tick), short_number(tick)
            parts.append(f'<text class="tx" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}">{label}</text>')
    parts.append(_axis_name(plot.x_label))
    return parts


def _axis_name(label: str) -> str:
    x = (LEFT + WIDTH - RIGHT) / 2
    return f'<text class="tx name" x="{x}" y="{HEIGHT - 3}">{html.escape(label)}</text>'


def _line(series: Series, xs: Sequence[float], x_axis: _Axis, y_axis: _Axis) -> str:
    points = [
        (x_axis.at(x), y_axis.at(v)) if _is_drawn(v) else None
        for x, v in zip(xs, series.values, strict=True)
    ]
    style = f"line {series.style}" + (" dashed" if series.is_dashed else "")
    drawing = f'<path class="{style}" d="{_path(points, bridge=series.has_markers)}"/>'
    if series.has_markers and sum(p is not None for p in points) <= _MOST_MARKERS:
        drawing += "".join(
            f'<circle class="dot {series.style}" cx="{p[0]:.1f}" cy="{p[1]:.1f}" r="3"/>'
            for p in points
            if p
        )
    return drawing


def _path(points: Sequence[tuple[float, float] | None], bridge: bool) -> str:
    """An SVG path; a missing point interrupts it unless `bridge`, which joins its neighbours."""
    commands, pen_is_down = [], False
    for point in points:
        if point is None:
            pen_is_down = pen_is_down and bridge
            continue
        commands.append(f"{'L' if pen_is_down else 'M'}{point[0]:.1f} {point[1]:.1f}")
        pen_is_down = True
    if len(commands) == 1:  # a lone point: a stroke of no length, which round caps make visible
        commands.append("h0")
    return "".join(commands)


def _band(series: Series, xs: Sequence[float], x_axis: _Axis, y_axis: _Axis) -> str:
    if not series.low:
        return ""
    lows, highs = series.low, series.high
    known = [
        (x_axis.at(x), y_axis.at(low), y_axis.at(high))
        for x, low, high in zip(xs, lows, highs, strict=True)
        if _is_drawn(low) and _is_drawn(high)
    ]
    outline = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
    return f'<path class="band {series.style}" d="{_path(outline, bridge=True)}"/>'


def _heat_row(
    row: Sequence[Number], top: float, height: float, x_axis: _Axis, low: float, high: float
) -> str:
    """Rectangles of one row, neighbours of the same shade merged."""
    rectangles = []
    drawn_height = height - 1 if height > 8 else height + 0.2  # thin rows touch
    start = 0
    shades = [_shade(value, low, high) for value in row]
    for i in range(1, len(shades) + 1):
        if i < len(shades) and shades[i] == shades[start]:
            continue
        if shades[start] is not None:
            x, end = x_axis.at(start), x_axis.at(i)
            rectangles.append(
                f'<rect class="heat" x="{x:.1f}" y="{top:.1f}" width="{end - x + 0.3:.1f}" '
                f'height="{drawn_height:.1f}" fill-opacity="{shades[start]:.3g}"/>'
            )
        start = i
    return "".join(rectangles)


def _shade(value: Number, low: float, high: float) -> float | None:
    if not _is_drawn(value):
        return None
    share = min(max((value - low) / (high - low), 0.0), 1.0)
    return 0.06 + 0.94 * round(share * _HEAT_LEVELS) / _HEAT_LEVELS


def _svg(parts: Sequence[str], data: Mapping[str, object], title: str) -> str:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<div class="plot"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}'
        f'<line class="rule" y1="{TOP}" y2="{HEIGHT - BOTTOM}" visibility="hidden"/></svg>'
        f'<script type="application/json">{text}</script></div>'
    )


def _legend(series: Sequence[Series]) -> str:
    if len(series) == 1:
        return ""
    entries = "".join(
        f'<span><i class="key {s.style}{" dashed" if s.is_dashed else ""}"></i>'
        f"{html.escape(s.name)}</span>"
        for s in series
    )
    return f'<p class="legend">{entries}</p>'


def _table(
    x_label: str, xs: Sequence[float], columns: Sequence[tuple[str, Sequence[Number]]]
) -> str:
    shown = sorted({round(i * (len(xs) - 1) / (_TABLE_ROWS - 1)) for i in range(_TABLE_ROWS)})
    head = "".join(f"<th>{html.escape(name)}</th>" for name in (x_label, *(n for n, _ in columns)))
    body = "".join(
        "<tr>"
        + "".join(f"<td>{_cell(v)}</td>" for v in (xs[i], *(values[i] for _, values in columns)))
        + "</tr>"
        for i in shown
    )
    return (
        "<details><summary>values</summary><div class='scroll'><table><thead><tr>"
        f"{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _figure(title: str, note: str, content: str) -> str:
    return (
        f'<figure class="card"><figcaption><h3>{html.escape(title)}</h3>'
        f"<p>{html.escape(note)}</p></figcaption>{content}</figure>"
    )


def _cell(value: Number) -> str:
    return "" if not _is_drawn(value) else f"{_rounded(value):,}"


def _is_drawn(value: Number) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _rounded(value: Number) -> Number:
    """Five significant digits, enough for a tooltip; whole numbers stay exact."""
    if not _is_drawn(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.5g}")
