"""A run of Markovian RSA as one self-contained HTML page.

    python -m zaya_jax.evaluation.rsa_view TRACE.jsonl [--tokenizer NAME] [--output FILE.html]

Rounds are columns, candidates are cards; lines lead from each card to those that read its tail. The
last column counts the final answers. Traces of our engine hold token ids: with the tokenizer they
are shown as text. A trace of a run that is not finished is shown as far as it goes.
"""

from __future__ import annotations

import collections
import html
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ConfigError
from zaya_jax.data.aggregation_prompt import Tokens
from zaya_jax.data.config import DataError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.evaluation.page import PLOT_GEOMETRY
from zaya_jax.evaluation.rsa_view_assets import SCRIPT, STYLE
from zaya_jax.inference.rollouts import Rollout
from zaya_jax.inference.rsa_trace import Candidate, Trace, read_trace
from zaya_jax.rl.environments.maths import last_boxed
from zaya_jax.rl.environments.protocol import last_tagged
from zaya_jax.training import report_page

TextOf = Callable[[Tokens], str]
_escape = html.escape


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = Parser(prog="python -m zaya_jax.evaluation.rsa_view", description=__doc__)
    parser.add_argument(
        "trace", type=Path, help="JSON lines, as a run of Markovian RSA writes them"
    )
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="of the model, for traces of our engine"
    )
    parser.add_argument("--output", type=Path, help="default: the trace's name with .html")
    arguments = parser.parse_args(argv)
    text_of = token_text if arguments.tokenizer is None else tokenizer_text(arguments.tokenizer)
    page = rsa_page(read_trace(arguments.trace), text_of)
    output = arguments.output or arguments.trace.with_suffix(".html")
    temporary = output.with_name(f"{output.name}.partial")
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(output)
    print(f"wrote {output}")
    return 0


def tokenizer_text(name: str) -> TextOf:
    """Turns token ids into text.

    Raises:
      DataError: when there is no such tokenizer.
    """
    tokenizer = load_tokenizer(name)

    def text_of(tokens: Tokens) -> str:
        ids = [token for token in tokens if isinstance(token, int)]
        return tokenizer.decode(ids, keep_special=True) if ids else token_text(tokens)

    return text_of


def token_text(tokens: Tokens) -> str:
    """Tokens that are texts, one after the other; ids as numbers."""
    return "".join(own if isinstance(own, str) else f" {own}" for own in tokens)


def rsa_page(trace: Trace, text_of: TextOf = token_text) -> str:
    """The page; every text of the trace is escaped."""
    columns = "".join(_column(number, trace, text_of) for number in range(len(trace.rounds)))
    body = "".join(
        (
            f"<style>{STYLE}</style><h1>Markovian RSA</h1>",
            f'<p class="lead">{_escape(_settings(trace))}</p>',
            report_page.tiles(_tiles(trace)),
            f'<details open class="problem"><summary>problem</summary><pre>'
            f"{_escape(trace.problem)}</pre></details>",
            f'<div class="rounds"><svg class="wires"></svg>{columns}{_votes(trace)}</div>',
            f"<script>{SCRIPT}</script>",
        )
    )
    return report_page.page("Markovian RSA - zaya_jax", body, PLOT_GEOMETRY)


def answer_key(answer: str) -> str:
    """What an answer comes to in the count: its last box or answer tag, or all of it."""
    content = last_boxed(answer) or last_tagged(answer) or answer
    return " ".join(content.split())


def _settings(trace: Trace) -> str:
    own = trace.settings
    return (
        f"T = {own.rounds}, N = {own.population}, C = {own.subset}, thinking budget "
        f"{own.thinking_budget:,}, tail {own.tail:,}, answer budget {own.answer_budget:,}, seed "
        f"{own.seed}"
    )


def _tiles(trace: Trace) -> list[tuple[str, str, str]]:
    candidates = [own for population in trace.rounds for own in population]
    made = [own.rollout for own in candidates if own.rollout is not None]
    wanted = (trace.settings.rounds + 1) * trace.settings.population
    lost = len(candidates) - len(made)
    return [
        ("new tokens", f"{sum(own.new_tokens for own in made):,}", "in all rounds"),
        ("prefill tokens", f"{sum(own.prefill_tokens for own in made):,}", "read in prompts"),
        ("peak context", f"{max((own.peak_context for own in made), default=0):,}", "tokens"),
        ("candidates", f"{len(candidates)} of {wanted}", f"{lost} lost"),
    ]


def _column(number: int, trace: Trace, text_of: TextOf) -> str:
    cards = "".join(_card(own, trace, text_of) for own in trace.rounds[number])
    return f'<section class="round"><h2>Round {number}</h2>{cards}</section>'


def _card(own: Candidate, trace: Trace, text_of: TextOf) -> str:
    sources = [f"{own.round - 1}-{other}" for other in own.drawn]
    head = (
        f'<article class="candidate" tabindex="0" id="c{own.round}-{own.index}" '
        f'data-sources="{" ".join(sources)}"><h3>{own.round}.{own.index}</h3>'
    )
    if own.drawn:
        names = ", ".join(f"{own.round - 1}.{other}" for other in own.drawn)
        head += f'<p class="reads">reads {names}</p>'
    if own.rollout is None:
        return f'{head}<p class="lost">lost: {_escape(own.error)}</p></article>'
    return f"{head}{_rollout(own.rollout, trace, text_of)}</article>"


def _rollout(own: Rollout, trace: Trace, text_of: TextOf) -> str:
    tail = min(trace.settings.tail, len(own.reasoning))
    before, kept = (
        own.reasoning[: len(own.reasoning) - tail],
        own.reasoning[len(own.reasoning) - tail :],
    )
    parts = [
        f'<p class="count">{own.new_tokens:,} new tokens, '
        f"{'closed itself' if own.closed else 'cut off'}</p>"
    ]
    if before:
        parts.append(_folded(f"{len(before):,} tokens forgotten", text_of(before)))
    if kept:
        parts.append(_folded(f"tail of {len(kept):,}", text_of(kept)))
    if own.answer:
        parts.append(_folded("answer", own.answer))
        parts.append(f'<p class="result">{_escape(_short(answer_key(own.answer)))}</p>')
    return "".join(parts)


def _votes(trace: Trace) -> str:
    if len(trace.rounds) <= trace.settings.rounds:
        return '<section class="round"><h2>Votes</h2><p class="none">not finished</p></section>'
    final = [own for own in trace.rounds[-1] if own.rollout is not None]
    places = collections.defaultdict(list)
    for own in final:
        places[answer_key(own.rollout.answer if own.rollout else "")].append(own)
    rows = []
    for key, owners in sorted(places.items(), key=lambda pair: -len(pair[1])):
        sources = " ".join(f"{own.round}-{own.index}" for own in owners)
        rows.append(
            f'<article class="candidate vote" tabindex="0" data-sources="{sources}">'
            f'<h3>{len(owners)} of {len(final)}</h3><p class="result">{_escape(_short(key))}</p>'
            f'<div class="share"><i style="width:{100 * len(owners) / len(final):.1f}%"></i></div>'
            "</article>"
        )
    return f'<section class="round"><h2>Votes</h2>{"".join(rows)}</section>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{_escape(title)}</summary><pre>{_escape(text)}</pre></details>"


def _short(text: str) -> str:
    return (text if len(text) <= 80 else f"{text[:77]}...") or "(empty)"


if __name__ == "__main__":
    errors = (ConfigError, DataError, OSError)
    run_command(lambda: main(sys.argv[1:]), errors)
