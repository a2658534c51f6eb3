"""Size against speed as a picture, one line per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zaya_jax.config import ConfigError


def plot_lines(
    path: Path,
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    y_label: str,
) -> None:
    """Draws (x, y) lines over a logarithmic x axis into an SVG or PNG file.

    Raises:
      ConfigError: when matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ConfigError(
            "plots need matplotlib: pip install 'zaya_jax[bench]', or leave --out away"
        ) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set(title=title, xlabel=x_label, ylabel=y_label, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
