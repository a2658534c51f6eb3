"""One self-contained HTML page about a training run.

    python -m zaya_jax.training.report runs/demo        # writes runs/demo/report.html

Long runs are cut into at most 160 stretches of steps: lines show the mean of a stretch, the faint
band behind them its extremes.
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zaya_jax.config import ModelConfig
from zaya_jax.model_size import active_parameter_count, parameter_count
from zaya_jax.training import report_page, report_plots
from zaya_jax.training.metrics_file import MetricsError
from zaya_jax.training.report_command import report_command
from zaya_jax.training.report_data import FloatArray, Run, Stretches, finite, is_finite, total
from zaya_jax.training.report_plots import HeatMap, LinePlot, Number, Series, short_number

FILE_NAME = "report.html"

_STRETCHES = 160  # most points of a line
_HEAT_STRETCHES = 96  # most columns of a heat map
_DEPTH_PROFILES = 5  # lines in the plot over depth
_SHOWN_EVENTS = 200  # the latest ones

_TIME_PARTS = (
    ("steps", "step_seconds"),
    ("waiting for data", "data_wait_seconds"),
    ("checkpoints", "checkpoint_seconds"),
    ("validation", "validation_seconds"),
    ("compiling and starting", "compile_seconds"),
)


def write_report(workdir: Path | str) -> Path:
    """Writes `workdir/report.html` from `metrics.jsonl` and `config.json`; returns its path.

    Raises:
      MetricsError: when the metrics are missing, empty or damaged, no step was finished, or
        config.json is damaged.
      OSError: when the page cannot be written.
    """
    folder = Path(workdir)
    run = Run.read(folder)
    if "reward" in run.train[0]:
        raise MetricsError(
            f"{folder} is a run of reinforcement learning: python -m zaya_jax.rl.report {folder}"
        )
    name = folder.resolve().name
    body = "".join(
        (
            _header(name, run),
            report_page.section("Learning", _learning(run)),
            report_page.section("Experts and depth", _experts(run)),
            report_page.section("Speed and size", _speed(run)),
            report_page.section("The run", run_cards(run)),
        )
    )
    return write_page(folder, name, body)


def write_page(folder: Path, name: str, body: str) -> Path:
    """Writes `folder/report.html` around the sections of its body, whole or not at all.

    Raises:
      OSError: when the page cannot be written.
    """
    geometry = {
        "WIDTH": report_plots.WIDTH,
        "LEFT": report_plots.LEFT,
        "RIGHT": report_plots.RIGHT,
    }
    path = folder / FILE_NAME
    temporary = path.with_suffix(".html.partial")
    temporary.write_text(report_page.page(f"{name} - zaya_jax", body, geometry), encoding="utf-8")
    temporary.replace(path)
    return path


def _header(name: str, run: Run) -> str:
    first, last = run.train[0], run.train[-1]
    begin, end = (datetime.datetime.fromtimestamp(r["time"]) for r in (first, last))
    steps = f"steps {first['step']:,} to {last['step']:,}"
    lead = f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, {steps}"
    entries = []
    for source in run.sources:
        records = run.of_source(source)
        entries.append(
            (
                f"validation loss, {source}",
                f"{records[-1]['loss']:.3f}",
                f"from {records[0]['loss']:.3f} at step {records[0]['step']:,}",
            )
        )
    entries.append(
        ("training loss", f"{last['loss']:.3f}", f"from {first['loss']:.3f}, one batch each")
    )
    entries.append(("tokens trained on", short_number(total(run.train, "tokens")), ""))
    speeds = [v for r in run.train if (v := r.get("tokens_per_second")) is not None]
    if speeds:
        entries.append(("tokens/s", short_number(round(statistics.median(speeds))), "median step"))
    if run.config and "model" in run.config:
        model = ModelConfig.from_dict(run.config["model"])
        active = f"{short_number(active_parameter_count(model))} active per token"
        entries.append(("parameters", short_number(parameter_count(model)), active))
    bad = sum(not is_finite(record["loss"]) for record in run.train)
    if bad:
        entries.append(("steps without a finite loss", f"{bad:,}", "not drawn"))
    heading = "<h1>Training report: " + report_page.html.escape(name) + "</h1>"
    return f'{heading}<p class="lead">{lead}</p>{report_page.tiles(entries)}'


def _learning(run: Run) -> list[str]:
    cut = Stretches(run.train, _STRETCHES)
    return [
        report_plots.line_plot(_with_validation(run, cut, "loss", "Loss", _loss_note(run))),
        report_plots.line_plot(
            _with_validation(
                run, cut, "accuracy", "Accuracy", "Share of next tokens ranked first.", percent=True
            )
        ),
        report_plots.line_plot(
            LinePlot(
                "Gradient norm",
                "Before clipping. Spikes that come back are a warning.",
                cut.x,
                [cut.series("grad_norm", "gradient norm", "s1")],
            )
        ),
        report_plots.line_plot(
            LinePlot(
                "Learning rate",
                "As scheduled.",
                cut.x,
                [cut.series("learning_rate", "learning rate", "s1")],
                from_zero=True,
            )
        ),
    ]


def _loss_note(run: Run) -> str:
    note = "Cross entropy in nats per token."
    if run.unigram_entropy is not None:
        note += " Below the dashed line the model uses context: word counts alone stop there."
    return note


def _with_validation(
    run: Run, cut: Stretches, metric: str, title: str, note: str, percent: bool = False
) -> LinePlot:
    """Training and validation on one grid of steps: the ends of stretches and the validations."""
    train = cut.series(metric, "training", "s1")
    steps = {float(record["step"]) for record in run.validation}
    x = sorted({*cut.x, *steps})
    at = {step: i for i, step in enumerate(cut.x)}

    def spread(values: Sequence[Number]) -> list[Number]:
        return [values[at[step]] if step in at else None for step in x] if values else []

    # Training lines must not break at the steps that only validation has.
    series = [
        Series(
            train.name, _bridged(spread(train.values)), "s1", spread(train.low), spread(train.high)
        )
    ]
    for i, source in enumerate(run.sources):
        known = {float(r["step"]): finite(r.get(metric)) for r in run.of_source(source)}
        values = [known.get(step) for step in x]
        label = f"validation, {source}"
        series.append(Series(label, values, f"s{2 + i % 5}", has_markers=True))
    entropy = run.unigram_entropy
    if metric == "loss" and entropy is not None:
        series.append(Series("unigram entropy", [entropy] * len(x), "level", is_dashed=True))
    return LinePlot(title, note, x, series, percent=percent)


def _bridged(values: Sequence[Number]) -> list[Number]:
    """Gaps of one step filled halfway between their neighbours."""
    filled = list(values)
    for i in range(1, len(values) - 1):
        before, after = values[i - 1], values[i + 1]
        if values[i] is None and before is not None and after is not None:
            filled[i] = (before + after) / 2
    return filled


def _experts(run: Run) -> list[str]:
    return [
        report_plots.heat_map(_entropy_map(run)),
        report_plots.line_plot(_expert_loads(run)),
        report_plots.heat_map(_skip_map(run)),
        report_plots.line_plot(_residual_by_depth(run)),
    ]


def _entropy_map(run: Run) -> HeatMap:
    cut = Stretches(run.train, _HEAT_STRETCHES)
    rows = cut.by_layer("load_entropy")
    known = [value for row in rows for value in row if value is not None]
    return HeatMap(
        "Load entropy by layer",
        "How evenly a layer spreads its tokens over the experts: 1 is perfectly even.",
        cut.x,
        rows,
        "layer",
        low=min(math.floor(min(known, default=0.0) * 10) / 10, 0.9),
        high=1.0,
    )


def _skip_map(run: Run) -> HeatMap:
    cut = Stretches(run.train, _HEAT_STRETCHES)
    rows = cut.by_layer("skip_share")
    most = max((value for row in rows for value in row if value is not None), default=0.0)
    return HeatMap(
        "Skip share by layer",
        "Share of tokens that pass a layer's experts by.",
        cut.x,
        rows,
        "layer",
        low=0.0,
        high=max(math.ceil(most * 20) / 20, 0.05),
    )


def _expert_loads(run: Run) -> LinePlot:
    cut = Stretches(run.train, _STRETCHES)

    def mean(loads: FloatArray) -> FloatArray:
        return loads.mean(axis=-1)

    def most(loads: FloatArray) -> FloatArray:
        return loads.max(axis=-1)

    def least(loads: FloatArray) -> FloatArray:
        return loads.min(axis=-1)

    return LinePlot(
        "Busiest and idlest expert",
        f"Share of a layer's routed tokens{_fair_share(run)}. Near 0 it learns nothing.",
        cut.x,
        [
            cut.over_layers("max_expert_load", most, "busiest, worst layer", "s2"),
            cut.over_layers("max_expert_load", mean, "busiest, mean", "s5"),
            cut.over_layers("min_expert_load", mean, "idlest, mean", "s3"),
            cut.over_layers("min_expert_load", least, "idlest, worst layer", "s1"),
        ],
        from_zero=True,
        percent=True,
    )


def _fair_share(run: Run) -> str:
    experts = ((run.config or {}).get("model") or {}).get("num_experts")
    return f"; even would be {100 / experts:.3g}% each" if experts else ""


def _speed(run: Run) -> list[str]:
    cut = Stretches(run.train, _STRETCHES)
    rate = [cut.series("model_flops_per_second", "model FLOP/s", "s1")]
    tokens = [cut.series("tokens_per_second", "tokens/s", "s1")]
    norm = [cut.series("param_norm", "parameter norm", "s1")]
    throughput = "Real tokens per second, padding not counted."
    flops = "Work the model needs, repeated work not counted; see zaya_jax/training/metrics.py."
    return [
        report_plots.line_plot(LinePlot("Throughput", throughput, cut.x, tokens, from_zero=True)),
        report_plots.line_plot(LinePlot("Model FLOP/s", flops, cut.x, rate, from_zero=True)),
        report_plots.line_plot(
            LinePlot("Parameter norm", "Of all parameters together.", cut.x, norm)
        ),
        _time_split(run),
    ]


def _residual_by_depth(run: Run) -> LinePlot:
    records = [record for record in run.train if record.get("residual_rms")]
    last = max(len(records) - 1, 0)
    picks = {round(i * last / (_DEPTH_PROFILES - 1)) for i in range(_DEPTH_PROFILES)}
    chosen = [records[i] for i in sorted(picks) if i < len(records)]
    depth = max((len(record["residual_rms"]) for record in chosen), default=1)
    series = [
        Series(
            f"step {record['step']:,}",
            [finite(record["residual_rms"], i) for i in range(depth)],
            f"t{_DEPTH_PROFILES - len(chosen) + i}",
        )
        for i, record in enumerate(chosen)
    ]
    return LinePlot(
        "Residual RMS by depth",
        "Size of the residual stream before each layer and after the last.",
        [float(i) for i in range(depth)],
        series,
        x_label="depth in layers",
    )


def _time_split(run: Run) -> str:
    seconds = [(name, total(run.train, field)) for name, field in _TIME_PARTS]
    whole = sum(value for _, value in seconds) or 1.0
    parts = [(name, value / whole, _duration(value)) for name, value in seconds]
    goodput = parts[0][1]
    return report_page.share_bar(
        "Where the time went",
        f"{_duration(whole)} recorded, {goodput:.0%} of it in steps (goodput).",
        parts,
    )


def run_cards(run: Run) -> list[str]:
    """Cards with the run's events and settings."""
    cards = []
    if run.events:
        rows = [
            (
                f"{r['step']:,}",
                f"{datetime.datetime.fromtimestamp(r['time']):%m-%d %H:%M:%S}",
                str(r["name"]),
                str(r.get("detail") or ""),
            )
            for r in run.events[-_SHOWN_EVENTS:]
        ]
        head = ("step", "time", "event", "detail")
        cards.append(report_page.text_table("Events", head, rows, folded=len(rows) > 12))
    if run.config is not None:
        settings = sorted(_flatten(run.config).items())
        cards.append(report_page.text_table("Settings", ("name", "value"), settings, folded=True))
    return cards


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    report_command("zaya_jax.training.report", __doc__, write_report, arguments)


if __name__ == "__main__":
    main()
