"""The frame of the report: style sheet, tooltip script, and the page around its sections.

Everything is inline; the page works from a file, in light and dark, on a phone and without a
network.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

STYLE = """
:root{color-scheme:light dark;--page:#f4f3ef;--card:#fcfcfb;--ink:#171716;--soft:#575650;
--grid:#e3e2dc;--edge:#e3e2dc;--c1:#2a78d6;--c2:#d9662b;--c3:#1a9b6c;--c4:#7a55c7;--c5:#b88400;
--c6:#c2407f;--heat:#1d62b5}
@media(prefers-color-scheme:dark){:root{--page:#111110;--card:#1b1b1a;--ink:#f3f2ee;--soft:#b3b2aa;
--grid:#2e2e2c;--edge:#2e2e2c;--c1:#5a9ef0;--c2:#ee8a55;--c3:#3dbb8c;--c4:#a48bf0;--c5:#d9a531;
--c6:#e573a7;--heat:#6fb0ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 16px 48px}
h1{font-size:23px;margin:0 0 2px}h2{font-size:17px;margin:34px 0 10px}h3{font-size:15px;margin:0}
p{margin:0}.lead,.card figcaption p,.none,footer{color:var(--soft)}
.card figcaption p,.legend,details,footer{font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(158px,1fr));gap:10px;margin:18px 0}
.tile,.card{background:var(--card);border:1px solid var(--edge);border-radius:10px}
.tile{padding:10px 13px}.tile span{display:block;color:var(--soft);font-size:12.5px}
.tile b{display:block;font-size:22px;font-weight:600;letter-spacing:-.01em}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:12px}
.card{margin:0;padding:13px 14px 9px;min-width:0}
.none{padding:30px 0;text-align:center}
.plot{position:relative;margin:6px 0 2px}
svg{display:block;width:100%;height:auto;overflow:visible;touch-action:pan-y}
svg text{font-size:12px;fill:var(--soft)}.ty{text-anchor:end}.tx{text-anchor:middle}
.grid{stroke:var(--grid)}.rule{stroke:var(--soft);stroke-dasharray:2 3}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.dashed{stroke-dasharray:6 5;stroke-width:1.6}
.band{fill-opacity:.17;stroke:none}.dot{stroke:var(--card);stroke-width:1.2}
.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}.s4{--c:var(--c4)}.s5{--c:var(--c5)}
.s6{--c:var(--c6)}.level{--c:var(--soft)}
.t0,.t1,.t2,.t3,.t4{--c:var(--c1)}.t0{opacity:.28}.t1{opacity:.45}.t2{opacity:.62}.t3{opacity:.8}
.line{stroke:var(--c)}.band,.dot{fill:var(--c)}.heat{fill:var(--heat)}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;align-items:center;margin-top:6px;
color:var(--soft)}
.legend>span:not(.scale){display:inline-flex;gap:6px;align-items:center}
.key{width:18px;border-top:2.5px solid var(--c)}.key.dashed{border-top-style:dashed}
.scale{width:110px;height:9px;border-radius:3px;margin:0 -6px;
background:linear-gradient(90deg,color-mix(in srgb,var(--heat) 6%,transparent),var(--heat))}
.tip{position:absolute;pointer-events:none;background:var(--ink);color:var(--page);font-size:12.5px;
line-height:1.4;padding:5px 9px;border-radius:6px;white-space:pre;z-index:2;top:0}
summary{cursor:pointer;color:var(--soft);padding:3px 0}
.scroll{overflow:auto;max-height:300px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}
th,td{padding:3px 12px 3px 0;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--grid)}
th{position:sticky;top:0;background:var(--card);font-weight:600}
.text td,.text th{text-align:left;white-space:normal;vertical-align:top;overflow-wrap:anywhere}
.bar{display:flex;height:18px;border-radius:5px;overflow:hidden;gap:2px;margin:10px 0 4px}
.bar i{background:var(--c);min-width:2px}.dotkey{width:10px;height:10px;border-radius:3px;
background:var(--c)}
footer{margin-top:30px}
"""

SCRIPT = """
for (const plot of document.querySelectorAll('.plot')) {
  const svg = plot.querySelector('svg'), rule = plot.querySelector('.rule');
  const data = JSON.parse(plot.querySelector('script').textContent);
  const [left, right] = [LEFT, WIDTH - RIGHT];
  const tip = Object.assign(document.createElement('div'), {className: 'tip', hidden: true});
  plot.append(tip);
  const format = v => v === null ? '-' : v.toLocaleString('en', {maximumSignificantDigits: 5});
  const hide = () => { tip.hidden = true; rule.setAttribute('visibility', 'hidden'); };
  const show = event => {
    const box = svg.getBoundingClientRect(), scale = WIDTH / box.width;
    const share = ((event.clientX - box.left) * scale - left) / (right - left);
    if (share < -0.02 || share > 1.02) return hide();
    let i, x, lines;
    if (data.rows) {
      const n = data.x.length, [top, bottom] = data.box;
      i = Math.min(n - 1, Math.max(0, Math.floor(share * n)));
      x = left + (i + 0.5) / n * (right - left);
      const y = ((event.clientY - box.top) * scale - top) / (bottom - top);
      if (y < 0 || y >= 1) return hide();
      const row = Math.floor(y * data.rows.length);
      lines = [`${data.row} ${row}: ${format(data.rows[row][i])}`];
    } else {
      const [low, high] = data.span, at = low + share * (high - low);
      const distance = j => Math.abs(data.x[j] - at);
      i = 0;
      for (let j = 1; j < data.x.length; j++) if (distance(j) < distance(i)) i = j;
      x = left + (data.x[i] - low) / (high - low) * (right - left);
      lines = data.series.filter(s => s[1][i] !== null).map(s => `${s[0]}: ${format(s[1][i])}`);
    }
    for (const end of ['x1', 'x2']) rule.setAttribute(end, x);
    rule.setAttribute('visibility', 'visible');
    tip.textContent = [`${data.label} ${format(data.x[i])}`, ...lines].join('\\n');
    tip.hidden = false;
    const place = x / scale, room = box.width - tip.offsetWidth;
    tip.style.left = Math.max(0, Math.min(room, place < room - 12 ? place + 12
      : place - tip.offsetWidth - 12)) + 'px';
  };
  svg.addEventListener('pointermove', show);
  svg.addEventListener('pointerdown', show);
  svg.addEventListener('pointerleave', hide);
}
"""


def page(title: str, body: str, plot_geometry: dict[str, int]) -> str:
    """The whole HTML page.

    Args:
      title: of the document.
      body: HTML of the sections.
      plot_geometry: values of WIDTH, LEFT and RIGHT for the tooltips.
    """
    constants = "".join(f"const {name}={value};" for name, value in plot_geometry.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{body}</main>\n<script>{constants}{SCRIPT}</script></body></html>\n"
    )


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """A row of tiles from (label, value, remark)."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><span>{html.escape(label)}</span><b>{html.escape(value)}</b>'
            f"<span>{html.escape(remark)}</span></div>"
            for label, value, remark in entries
        )
        + "</div>"
    )


def section(title: str, cards: Sequence[str]) -> str:
    """A heading over cards, two abreast where there is room."""
    return f'<h2>{html.escape(title)}</h2><div class="cards">{"".join(cards)}</div>'


def share_bar(title: str, note: str, parts: Sequence[tuple[str, float, str]]) -> str:
    """A card with one bar cut into shares, from (name, share, text)."""
    bar = "".join(
        f'<i class="s{i}" style="flex:{share:.5f}"></i>'
        for i, (_, share, _) in enumerate(parts, start=1)
        if share > 0
    )
    legend = "".join(
        f'<span><i class="dotkey s{i}"></i>{html.escape(name)} {html.escape(text)}</span>'
        for i, (name, _, text) in enumerate(parts, start=1)
    )
    return (
        f'<figure class="card"><figcaption><h3>{html.escape(title)}</h3><p>{html.escape(note)}</p>'
        f'</figcaption><div class="bar">{bar}</div><p class="legend">{legend}</p></figure>'
    )


def text_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], folded: bool) -> str:
    """A card with a table of text, folded away if asked."""
    header = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = (
        f'<div class="scroll text"><table><thead><tr>{header}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    heading = f"<h3>{html.escape(title)}</h3>"
    if folded:
        table = f"<details><summary>{len(rows)} entries</summary>{table}</details>"
    return f'<div class="card">{heading}{table}</div>'
