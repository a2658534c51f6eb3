"""One self-contained HTML page about a run of reinforcement learning.

python -m zaya_jax.rl.report runs/rl        # writes runs/rl/report.html
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from zaya_jax.training import report_page, report_plots
from zaya_jax.training.metrics_file import MetricsError
from zaya_jax.training.report import run_cards, write_page
from zaya_jax.training.report_command import report_command
from zaya_jax.training.report_data import Run, Stretches, finite, total
from zaya_jax.training.report_plots import HeatMap, LinePlot, Series, short_number

ROLLOUTS_FILE = "rollouts.txt"

_DIFFICULTY = "difficulty/"  # prefix of the metrics

_STRETCHES = 160  # most points of a line
_HEAT_STRETCHES = 96  # most columns of a heat map
_SHOWN_CHARACTERS = 20_000  # of the latest rollouts

# Title, note, and the metrics with their labels; drawn where a run has them.
_Plot = tuple[str, str, tuple[tuple[str, str], ...]]
_POLICY: tuple[_Plot, ...] = (
    (
        "Ratio of trainer to sampler",
        "Quantiles over the response tokens of a batch; 1 throughout is exactly on-policy.",
        (
            ("ratio_max", "largest"),
            ("ratio_q99", "99%"),
            ("ratio_q01", "1%"),
            ("ratio_min", "least"),
        ),
    ),
    (
        "Kept out by the trust region",
        "Share of response tokens, by the sign of their advantage.",
        (("blocked_positive", "positive"), ("blocked_negative", "negative"), ("blocked", "all")),
    ),
    (
        "KL between sampler and trainer",
        "Estimator k3, in nats per token.",
        (("kl_k3", "KL"),),
    ),
    ("Entropy", "Of the next token, mean over responses, in nats.", (("entropy", "entropy"),)),
    (
        "Routes that live routing would change",
        "Share of the recorded choices.",
        (("flipped_routes", "flipped"),),
    ),
    ("Gradient norm", "Before clipping.", (("grad_norm", "gradient norm"),)),
)
_ROLLOUTS: tuple[_Plot, ...] = (
    (
        "Groups",
        "Trained on, and filtered out because all their rollouts were worth the same.",
        (("groups_kept", "kept"), ("groups_dropped", "dropped")),
    ),
    ("Response length", "Tokens, mean over all rollouts.", (("response_length", "tokens"),)),
    (
        "Ended by their length or flagged",
        "Share of rollouts truncated; number flagged as repetitive.",
        (("truncated", "truncated"), ("flagged", "flagged")),
    ),
    (
        "Age of the policy",
        "Updates between the weights that drew a token and those it trained.",
        (("policy_age_max", "largest"), ("policy_age_mean", "mean")),
    ),
    (
        "Lost to the buffer",
        "Groups evicted because it was full, or too old when the trainer came; so far.",
        (("evicted_groups", "evicted"), ("stale_groups", "stale")),
    ),
    (
        "Tokens per second",
        "Of responses: drawn, and trained on, over the whole step.",
        (("rollout_tokens_per_second", "drawn"), ("trained_tokens_per_second", "trained")),
    ),
    (
        "Idle",
        "Share of the time: the trainer without groups, workers with nothing to do.",
        (("trainer_idle_share", "trainer"), ("workers_idle_share", "workers")),
    ),
    (
        "Seconds of a step",
        "Waiting for rollouts, training, handing the weights over.",
        (("sample_seconds", "rollouts"), ("train_seconds", "training"), ("sync_seconds", "sync")),
    ),
)


def write_report(workdir: Path | str) -> Path:
    """Writes `workdir/report.html`; returns its path.

    Raises:
      MetricsError: when the metrics are missing, empty or damaged, or of another kind of run.
      OSError: when the page cannot be written.
    """
    folder = Path(workdir)
    run = Run.read(folder)
    if "reward" not in run.train[0]:
        raise MetricsError(
            f"{folder} is no run of reinforcement learning: python -m zaya_jax.training.report "
            f"{folder}"
        )
    name = folder.resolve().name
    cut = Stretches(run.train, _STRETCHES)
    body = "".join(
        (
            _header(name, run),
            report_page.section("Learning", [_solve_rates(run), _rewards(run, cut)]),
            report_page.section("Policy", [_plot(cut, *plot) for plot in _POLICY]),
            report_page.section("Rollouts", [_plot(cut, *plot) for plot in _ROLLOUTS]),
            _curriculum(run, cut),
            report_page.section("Experts", [_load_entropy(run)]),
            report_page.section("The run", [*_latest_rollouts(folder), *run_cards(run)]),
        )
    )
    return write_page(folder, name, body)


def _header(name: str, run: Run) -> str:
    first, last = run.train[0], run.train[-1]
    entries = []
    for source in run.sources:
        records = run.of_source(source)
        begin, end = (records[i].get("solve_rate") for i in (0, -1))
        entries.append((f"solved, {source}", f"{end:.0%}", f"from {begin:.0%}, held out"))
    entries.append(
        ("reward", f"{last['reward']:.3f}", f"from {first['reward']:.3f}, one batch each")
    )
    entries.append(("response tokens", short_number(total(run.train, "response_tokens")), ""))
    lead = f"steps {first['step']:,} to {last['step']:,}"
    heading = f"<h1>Reinforcement learning: {html.escape(name)}</h1>"
    return f'{heading}<p class="lead">{lead}</p>{report_page.tiles(entries)}'


def _solve_rates(run: Run) -> str:
    x = sorted({float(record["step"]) for record in run.validation})
    series = []
    for i, source in enumerate(run.sources):
        known = {float(r["step"]): finite(r.get("solve_rate")) for r in run.of_source(source)}
        values = [known.get(step) for step in x]
        series.append(Series(source, values, _style(i), has_markers=True))
    title, note = "Solved of held-out problems", "One response to each, problems never trained on."
    return report_plots.line_plot(LinePlot(title, note, x, series, from_zero=True, percent=True))


def _rewards(run: Run, cut: Stretches) -> str:
    names = sorted({name for record in run.train for name in record if name.startswith("reward/")})
    series = [
        cut.series(name, name.removeprefix("reward/"), _style(i)) for i, name in enumerate(names)
    ]
    note = "Mean over all rollouts, those of filtered groups too."
    return report_plots.line_plot(LinePlot("Reward by source", note, cut.x, series, from_zero=True))


def _curriculum(run: Run, cut: Stretches) -> str:
    """Where calibration put the environments, and a plot of each environment's difficulty."""
    found = [event for event in run.events if event["name"] == "calibration"]
    rows = [
        (r["source"], str(r["difficulty"]), f"{r['solve_rate']:.0%}", str(r["groups"]))
        for r in found
    ]
    head = ("environment", "starts at", "expected to be solved", "groups")
    table = [report_page.text_table("Calibration", head, rows, folded=len(rows) > 12)]
    names = sorted(name for name in run.train[-1] if name.startswith(_DIFFICULTY))
    note = "Difficulty of the next problem."
    plots = [
        LinePlot(
            name.removeprefix(_DIFFICULTY), note, cut.x, [cut.series(name, "difficulty", "s1")]
        )
        for name in names
    ]
    cards = [*(table if rows else []), *(report_plots.line_plot(plot) for plot in plots)]
    return report_page.section("Curriculum", cards) if cards else ""


def _plot(cut: Stretches, title: str, note: str, metrics: Sequence[tuple[str, str]]) -> str:
    series = [cut.series(name, label, _style(i)) for i, (name, label) in enumerate(metrics)]
    return report_plots.line_plot(LinePlot(title, note, cut.x, series))


def _load_entropy(run: Run) -> str:
    cut = Stretches(run.train, _HEAT_STRETCHES)
    note = "How evenly a layer spreads its tokens over the experts: 1 is perfectly even."
    rows = cut.by_layer("load_entropy")
    return report_plots.heat_map(
        HeatMap("Load entropy by layer", note, cut.x, rows, "layer", low=0.0, high=1.0)
    )


def _latest_rollouts(folder: Path) -> list[str]:
    path = folder / ROLLOUTS_FILE
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")[-_SHOWN_CHARACTERS:]
    blocks = text.split("--- ")[1:][::-1]
    rows = [(head, rest) for head, _, rest in (block.partition("\n") for block in blocks)]
    return [report_page.text_table("Latest rollouts", ("rollout", "text"), rows, folded=True)]


def _style(i: int) -> str:
    return f"s{1 + i % 6}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    report_command("zaya_jax.rl.report", __doc__, write_report, arguments)


if __name__ == "__main__":
    main()
