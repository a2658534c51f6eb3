"""Which form runs is never changed silently; what cannot run says why and what to use instead."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from kernels_pallas import backend, tune
from kernels_pallas.backend import KernelError, Target, Tiles, choose, compile_for, tiles


def on_gpu(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    class Device:
        device_kind = kind

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [Device()])


def test_auto_is_xla_on_a_cpu_and_the_kernels_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("auto", "norm") is None
    assert choose("xla", "norm") is None
    on_gpu(monkeypatch, "gfx942")
    assert choose("auto", "norm") == choose("pallas", "norm") == Target("mi300x")
    assert choose("xla", "norm") is None
    on_gpu(monkeypatch, "NVIDIA H200")
    assert choose("auto", "norm") == Target("h200")


def test_auto_on_a_gpu_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, "gfx942")
    with pytest.raises(KernelError, match="norm: .* head_dim = 300; use implementation='xla'"):  # noqa: RUF043
        choose("auto", "norm", [None, "head_dim = 300"])
    on_gpu(monkeypatch, "NVIDIA T4")
    with pytest.raises(
        KernelError, match=r"no tuned table names the device kind 'NVIDIA T4' .*tune"
    ):
        choose("auto", "norm")


def test_all_reasons_are_shown_together() -> None:
    with compile_for(Target("mi300x")), pytest.raises(KernelError, match=r"first; second; use"):
        choose("pallas", "norm", ["first", None, "second"])


def test_unknown_words_and_missing_tables_are_named() -> None:
    with pytest.raises(KernelError, match="norm: implementation = 'triton': must be"):
        choose("triton", "norm")
    with pytest.raises(KernelError, match=r"no tuned table 'mi100' \(tables: .*\); make one with"):
        tiles(Target("mi100"), "norm_forward")
    with pytest.raises(KernelError, match="'mi300x' has no tiles for it at size 512; make them"):
        tiles(Target("mi300x"), "attention_forward", 512)


def test_tables_name_the_same_kernels() -> None:
    names = {
        name: {key.split(":")[0] for key in json.loads(path.read_text())["tiles"]}
        for path in backend.TABLES.glob("*.json")
        for name in [path.stem]
    }
    assert set(names) == {"interpreter", "mi300x", "mi350", "h200"}
    assert all(kernels == names["interpreter"] for kernels in names.values())


def test_the_smallest_entry_that_fits_is_taken() -> None:
    target = Target("mi300x")
    assert tiles(target, "attention_forward", 65) == tiles(target, "attention_forward", 128)
    assert tiles(target, "attention_forward", 64) != tiles(target, "attention_forward", 128)


def test_tuning_tries_neighbours_and_writes_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiles(Target("mi300x"), "expert_down")
    assert {p.num_warps for p in tune.candidates(plan)} == {4, 8}
    assert max(map(tune.area, tune.candidates(plan))) == 2 * tune.area(plan)
    (tmp_path / "new.json").write_text(
        json.dumps({"device_kinds": [], "made_by": "", "tiles": {"attention_dq:128": {"query": 1}}})
    )
    monkeypatch.setattr(tune, "TABLES", tmp_path)
    monkeypatch.setattr(backend, "TABLES", tmp_path)
    chosen = Tiles((("key", 32), ("query", 16)), 4, 1)
    tune.write("new", "attention_dq", chosen, "test")
    assert tiles(Target("new"), "attention_dq", 128) == chosen


def test_tuning_by_time_without_a_gpu_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        tune.main(["--target", "mi300x", "--time"])
    assert stop.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("error: --time needs the GPU, the default backend is 'cpu'")
    assert err.count("\n") == 1
