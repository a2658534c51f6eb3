"""A scatter of probabilities against probabilities, as inline SVG."""

from __future__ import annotations

import html

import numpy as np
from jaxtyping import Float

_SIDE, _LEFT, _TOP = 300, 44, 10  # the square that is drawn in, and what lies beside it
_MOST_POINTS = 3_000  # drawn; which ones does not depend on chance
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def probability_scatter(
    title: str,
    note: str,
    x: Float[np.ndarray, " tokens"],
    y: Float[np.ndarray, " tokens"],
    *,
    x_label: str,
    y_label: str,
) -> str:
    """An HTML figure for the report page: points on the diagonal agree.

    Args:
      title: of the figure.
      note: what to look for.
      x: probabilities, in [0, 1].
      y: probabilities of the same tokens.
      x_label: whose x is.
      y_label: whose y is.
    """
    step = max(1, -(-len(x) // _MOST_POINTS))
    # The points that lie farthest off are always among those drawn.
    order = np.argsort(-np.abs(y - x), kind="stable")
    chosen = np.concatenate([order[: _MOST_POINTS // 10], order[_MOST_POINTS // 10 :: step]])
    points = "".join(
        f'<circle cx="{_x(a):.1f}" cy="{_y(b):.1f}" r="1.7" fill-opacity=".45" class="dot s1"/>'
        for a, b in zip(x[chosen].tolist(), y[chosen].tolist(), strict=True)
    )
    grid = "".join(
        f'<line class="grid" x1="{_x(0)}" x2="{_x(1)}" y1="{_y(t):.1f}" y2="{_y(t):.1f}"/>'
        f'<text class="ty" x="{_LEFT - 6}" y="{_y(t) + 4:.1f}">{t:g}</text>'
        f'<text class="tx" x="{_x(t):.1f}" y="{_TOP + _SIDE + 16}">{t:g}</text>'
        for t in _TICKS
    )
    diagonal = f'<path class="line level dashed" d="M{_x(0)} {_y(0)}L{_x(1)} {_y(1)}"/>'
    names = (
        f'<text class="tx" x="{_x(0.5)}" y="{_TOP + _SIDE + 33}">{html.escape(x_label)}</text>'
        f'<text class="tx" transform="translate(11 {_y(0.5)}) rotate(-90)">'
        f"{html.escape(y_label)}</text>"
    )
    box = f'viewBox="0 0 {_LEFT + _SIDE + 12} {_TOP + _SIDE + 38}"'
    return (
        f'<figure class="card"><figcaption><h3>{html.escape(title)}</h3><p>{html.escape(note)}</p>'
        f'</figcaption><svg {box} role="img" aria-label="{html.escape(title)}">'
        f"{grid}{diagonal}{points}{names}</svg></figure>"
    )


def _x(value: float) -> float:
    return _LEFT + value * _SIDE


def _y(value: float) -> float:
    return _TOP + (1.0 - value) * _SIDE
