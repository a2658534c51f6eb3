"""The report shows the recorded numbers, needs nothing else, and survives odd runs."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from zaya_jax.presets import preset
from zaya_jax.training.metrics_file import JsonlWriter, MetricsError
from zaya_jax.training.report import main, write_report
from zaya_jax.training.report_data import Stretches
from zaya_jax.training.report_plots import (
    HeatMap,
    LinePlot,
    Series,
    heat_map,
    line_plot,
    tick_labels,
)

LAYERS = 3


def train(step: int, **changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "kind": "train",
        "step": step,
        "time": 1.8e9 + step,
        "loss": 9.0 - step / 100,
        "accuracy": 0.1,
        "tokens": 100,
        "grad_norm": 1.0,
        "param_norm": 40.0,
        "learning_rate": 1e-3,
        "tokens_per_second": 5_000.0,
        "model_flops_per_second": 1e9,
        "mfu": None,
        "step_seconds": 0.75,
        "data_wait_seconds": 0.125,
        "checkpoint_seconds": 0.125,
        "validation_seconds": 0.0,
        "compile_seconds": 0.0,
        "goodput": 0.75,
        "load_entropy": [0.5, 0.75, 1.0],
        "skip_share": [0.0, 0.1, 0.2],
        "min_expert_load": [0.01, 0.02, 0.03],
        "max_expert_load": [0.5, 0.4, 0.3],
        "residual_rms": [1.0, 2.0, 4.0, 8.0],
    }
    return record | changes


def validation(step: int, loss: float, **changes: Any) -> dict[str, Any]:
    record = {"kind": "validation", "step": step, "time": 1.8e9 + step, "source": "prose"}
    return record | {"loss": loss, "accuracy": 0.2, "tokens": 64} | changes


def write_run(workdir: Path, records: list[dict[str, Any]]) -> Path:
    writer = JsonlWriter(workdir)
    for record in records:
        writer.write(record)
    writer.close()
    return workdir


class Page(HTMLParser):
    """Collects the text, the addresses and the plots' data of a page, checking that tags close."""

    VOID = frozenset({"meta", "line", "path", "rect", "circle"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []
        blocks = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
        self.plots = [json.loads(block) for block in blocks]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def series(self, name: str) -> tuple[list[float], list[float | None]]:
        for plot in self.plots:
            for label, values in plot.get("series", []):
                if label == name:
                    return plot["x"], values
        raise AssertionError(f"no series {name!r}")


def test_the_page_shows_the_recorded_numbers(tmp_path: Path) -> None:
    records = [validation(0, 9.25), *(train(step) for step in range(1, 21)), validation(20, 8.5)]
    records.append({"kind": "event", "step": 20, "time": 1.8e9, "name": "resume", "detail": "<b>"})
    write_run(tmp_path, records)
    config = {"model": preset("nano").to_dict(), "train": {"steps": 20}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    steps, losses = page.series("training")
    assert [losses[steps.index(step)] for step in (1, 20)] == [8.99, 8.8]
    steps, losses = page.series("validation, prose")
    assert (losses[steps.index(0)], losses[steps.index(20)]) == (9.25, 8.5)
    assert page.series("busiest, worst layer")[1][0] == 0.5
    assert page.series("idlest, mean")[1][0] == 0.02
    assert page.series("step 20") == ([0, 1, 2, 3], [1, 2, 4, 8])
    (entropy, skip) = (plot["rows"] for plot in page.plots if "rows" in plot)
    assert [row[0] for row in entropy] == [0.5, 0.75, 1.0]
    assert [row[-1] for row in skip] == [0.0, 0.1, 0.2]
    assert "20.0 s recorded, 75% of it in steps" in text
    assert "&lt;b&gt;" in text
    assert "train.steps" in text


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    text = write_report(write_run(tmp_path, [train(1)])).read_text(encoding="utf-8")
    assert Page(text).addresses == []
    assert not re.search(r"https?://|@import|url\(|fetch\(|import\(", text)


def test_the_drawings_are_well_formed_and_stay_inside_their_box(tmp_path: Path) -> None:
    records = [train(s, grad_norm=1000.0 if s == 7 else 1.0, loss=s % 5) for s in range(1, 200)]
    text = write_report(write_run(tmp_path, [*records, validation(250, 3.0)])).read_text()
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 11
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        for path in re.findall(r' d="([^"]*)"', drawing):
            pairs = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)
            assert all(0 <= float(x) <= 480 and 0 <= float(y) <= 236 for x, y in pairs)


def test_the_unigram_entropy_is_drawn_where_it_is_recorded(tmp_path: Path) -> None:
    write_run(tmp_path, [train(1), train(2), validation(2, 5.0, unigram_entropy=6.25)])
    page = Page(write_report(tmp_path).read_text())
    assert page.series("unigram entropy")[1] == [6.25, 6.25]


def test_a_run_that_diverged_is_reported_and_not_drawn(tmp_path: Path) -> None:
    bad = {"loss": math.nan, "grad_norm": math.inf, "load_entropy": [math.nan] * LAYERS}
    text = write_report(write_run(tmp_path, [train(1), train(2, **bad)])).read_text()
    assert Page(text).series("training")[1] == [8.99, None]
    assert "steps without a finite loss" in text


def test_metrics_a_run_lacks_are_said_to_be_missing(tmp_path: Path) -> None:
    record = {"kind": "train", "step": 1, "time": 1.8e9, "loss": 2.0}
    text = write_report(write_run(tmp_path, [record])).read_text()
    assert text.count("not recorded in this run") == 10


def test_a_spike_of_one_step_survives_the_reduction_of_a_long_run() -> None:
    records = [train(step, grad_norm=50.0 if step == 4_321 else 1.0) for step in range(1, 5_001)]
    cut = Stretches(records, 160)
    series = cut.series("grad_norm", "gradient norm", "s1")
    assert len(cut.x) <= 160
    assert cut.x[-1] == 5_000
    assert max(series.high) == 50.0
    assert sorted(set(series.low)) == [1.0]
    plot = LinePlot("Gradient norm", "", cut.x, [series])
    assert line_plot(plot).count('class="band s1"') == 1


def test_the_page_stays_small_for_many_layers_and_steps(tmp_path: Path) -> None:
    wide = {
        name: [(i * 37 % 101) / 101 for i in range(20)]
        for name in ("load_entropy", "skip_share", "min_expert_load", "max_expert_load")
    }
    records = [train(step, **wide) for step in range(1, 301)]
    path = write_report(write_run(tmp_path, records))
    assert path.stat().st_size < 400_000


def test_heat_map_shades_follow_the_values() -> None:
    plot = HeatMap("Load", "", [1.0, 2.0, 3.0], [[0.0, 1.0, None]], "layer", low=0.0, high=1.0)
    shades = re.findall(r'fill-opacity="([\d.]+)"', heat_map(plot))
    assert shades == ["0.06", "1"]


def test_neighbouring_ticks_have_different_labels() -> None:
    assert tick_labels([85.481, 85.482, 85.483]) == ["85.481", "85.482", "85.483"]
    assert tick_labels([0.0, 0.25, 0.5], percent=True) == ["0%", "25%", "50%"]
    assert tick_labels([0, 5_000, 10_000, 1_500_000]) == ["0", "5000", "10k", "1.5M"]
    assert tick_labels([2e-4, 3e-5]) == ["0.0002", "3e-05"]


def test_a_line_breaks_where_a_value_is_missing() -> None:
    series = Series("loss", [1.0, 2.0, None, 3.0], "s1")
    (path,) = re.findall(
        r'class="line s1" d="([^"]*)"', line_plot(LinePlot("", "", [0, 1, 2, 3], [series]))
    )
    assert path.count("M") == 2


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "does not exist"),
        (lambda folder: (folder / "metrics.jsonl").write_text(""), "holds no records"),
        (lambda folder: (folder / "metrics.jsonl").write_text("junk\n"), "line 1"),
        (lambda folder: write_run(folder, [validation(0, 9.0)]), "not finished a step"),
        (
            lambda folder: (
                (folder / "config.json").write_text("{") and write_run(folder, [train(1)])
            ),
            "config.json is not JSON",
        ),
    ],
)
def test_unusable_runs_give_one_clear_error_and_no_page(
    tmp_path: Path, prepare: Any, message: str
) -> None:
    prepare(tmp_path)
    with pytest.raises(MetricsError, match=message):
        write_report(tmp_path)
    with pytest.raises(SystemExit, match=message):
        main([str(tmp_path)])
    assert not list(tmp_path.glob("report*"))
