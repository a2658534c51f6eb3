"""The page about an RL run: its figures, its rollouts, and which run it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zaya_jax.rl.report import write_report
from zaya_jax.training import report as training_report
from zaya_jax.training.metrics_file import MetricsError

CALIBRATED = {"source": "<sums>", "difficulty": 3, "solve_rate": 0.5, "groups": 40}


def run_folder(folder: Path, **changes: Any) -> Path:
    records: list[dict[str, Any]] = []
    for step in range(1, 4):
        metrics = {"difficulty/<sums>": step, "difficulty/sorting": 7}
        metrics |= {"reward": 0.1 * step, "reward/sums": 0.1 * step, "entropy": 1.0, "loss": -0.5}
        record = {"kind": "train", "step": step, "time": 1_000.0 + step, **metrics, **changes}
        records.append(record | {"ratio_max": 1.25, "load_entropy": [0.5, 0.75]})
    event = {"kind": "event", "step": 0, "time": 1_000.0, "name": "calibration"}
    records.append(event | CALIBRATED)
    for step, rate in ((0, 0.25), (3, 0.75)):
        measured = {"kind": "validation", "step": step, "time": 1_000.0, "source": "sums<b>"}
        records.append({**measured, "solve_rate": rate})
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_the_page_tells_solve_rates_and_shows_rollouts_as_text(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "rollouts.txt").write_text("--- step 3, sums, reward 1\n1+1=\n>>> <script>2\n")
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<b>75%</b>" in page
    assert "from 25%, held out" in page
    assert "sums&lt;b&gt;" in page
    assert "&lt;script&gt;2" in page
    assert "not recorded in this run" in page  # the buffer: this run had none
    assert "1.25" in page


def test_the_page_has_a_plot_of_each_environments_difficulty(tmp_path: Path) -> None:
    page = write_report(run_folder(tmp_path)).read_text(encoding="utf-8")
    assert "Calibration" in page
    assert "&lt;sums&gt;" in page
    assert "<sums>" not in page.replace("&lt;sums&gt;", "")
    assert page.count("Difficulty of the next problem.") == 2


def test_a_run_of_another_kind_is_named_with_the_command_for_it(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    with pytest.raises(MetricsError, match=r"python -m zaya_jax\.rl\.report"):
        training_report.write_report(folder)
    lines = (folder / "metrics.jsonl").read_text().replace('"reward"', '"accuracy"')
    (folder / "metrics.jsonl").write_text(lines)
    with pytest.raises(MetricsError, match=r"python -m zaya_jax\.training\.report"):
        write_report(folder)
