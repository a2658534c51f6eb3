"""Style and script of the page of a Markovian RSA run."""

STYLE = """
main{max-width:none}
.problem pre{margin:6px 0 0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.45 ui-monospace,monospace;margin:4px 0;
max-height:320px;overflow:auto}
.rounds{position:relative;display:flex;gap:70px;overflow-x:auto;padding-bottom:16px;margin-top:20px}
.round{flex:1 0 200px;max-width:420px;min-width:0}
.wires{position:absolute;left:0;top:0;pointer-events:none;overflow:visible;width:1px;height:1px}
.wires path{fill:none;stroke:var(--soft);stroke-opacity:.28;stroke-width:1.2}
.wires path.on{stroke:var(--c2);stroke-opacity:1;stroke-width:2.2}
.candidate{background:var(--card);border:1px solid var(--edge);border-radius:9px;padding:7px 10px;
margin:0 0 9px;font-size:13px}
.candidate.near{border-color:var(--c2)}.candidate.at{border-color:var(--c1)}
.reads,.count{color:var(--soft)}
.lost{color:var(--c2)}.result{font-weight:600;overflow-wrap:anywhere}
.share{height:6px;border-radius:3px;background:var(--grid);margin-top:5px}
.share i{display:block;height:6px;border-radius:3px;background:var(--c1)}
"""

SCRIPT = """
(() => {
  const box = document.querySelector('.rounds'), svg = box.querySelector('.wires');
  const cards = [...box.querySelectorAll('.candidate')], wires = [];
  const NS = 'http://www.w3.org/2000/svg';
  for (const card of cards) {
    for (const source of card.dataset.sources.split(' ').filter(Boolean)) {
      const from = document.getElementById('c' + source);
      if (!from) continue;
      const path = svg.appendChild(document.createElementNS(NS, 'path'));
      wires.push({from, to: card, path});
    }
  }
  const draw = () => {
    const origin = box.getBoundingClientRect();
    const place = (card, right) => {
      const r = card.getBoundingClientRect();
      return [(right ? r.right : r.left) - origin.left + box.scrollLeft,
        r.top + Math.min(18, r.height / 2) - origin.top];
    };
    for (const {from, to, path} of wires) {
      const [x, y] = place(from, true), [u, v] = place(to, false), middle = (x + u) / 2;
      path.setAttribute('d', `M${x} ${y}C${middle} ${y} ${middle} ${v} ${u} ${v}`);
    }
  };
  const light = card => {
    for (const other of cards) other.classList.remove('at', 'near');
    for (const wire of wires) {
      const on = card && (wire.from === card || wire.to === card);
      wire.path.classList.toggle('on', Boolean(on));
      if (on) (wire.from === card ? wire.to : wire.from).classList.add('near');
    }
    if (card) card.classList.add('at');
  };
  for (const card of cards) {
    card.addEventListener('pointerenter', () => light(card));
    card.addEventListener('focus', () => light(card));
    card.addEventListener('pointerleave', () => light(null));
    card.addEventListener('toggle', draw, true);
  }
  addEventListener('resize', draw);
  draw();
})();
"""
