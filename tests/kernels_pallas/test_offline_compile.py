"""Kernels compile to machine code with no GPU, and a broken limit is an error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kernels_pallas import offline_compile
from kernels_pallas.machine_code import Figures

GUIDE = Path(__file__).parents[2] / "docs" / "kernels.md"


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        offline_compile.main(words)
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_kernels_within_their_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--only", "norm", "--json") == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    assert [k["kernel"] for k in kernels] == ["norm_forward", "norm_backward"]
    assert all(k["registers"] > 0 and k["spills"] == 0 for k in kernels)


def test_float32_arrays_are_compiled_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shared = []
    for words in ((), ("--float32",)):
        command("--only", "cca", "--json", *words)
        kernels = json.loads(capsys.readouterr().out)["kernels"]
        shared.append([k["shared_bytes"] for k in kernels])
    assert shared[0] != shared[1]


def test_an_oversized_tile_breaks_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--only", "norm", "--tile", "norm_forward.rows=16") == 1
    assert "error: norm_forward on mi300x: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("target", ["mi300x", "mi350", "h200"])
def test_the_guide_shows_what_the_command_prints(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--target", target, "--markdown") == 0
    assert capsys.readouterr().out in GUIDE.read_text(encoding="utf-8")


def test_a_reader_that_leaves_gets_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `| head` does once it has its lines."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)

        def status() -> int:
            print("figures", flush=True)
            return 0

        with pytest.raises(SystemExit) as stop:
            offline_compile.exit_with_status(status)
    assert stop.value.code == 1


def figures(**changes: int) -> Figures:
    sound = {"registers": 200, "spills": 0, "scratch_bytes": 0, "shared_bytes": 65536}
    sound |= {"matrix_instructions": 8, "waves": 2, "num_warps": 4, "num_stages": 1}
    return Figures("attention", "mi300x", **{**sound, **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spills": 3}, "3 spilled"),
        ({"scratch_bytes": 16}, "16 B scratch"),
        ({"shared_bytes": 65537}, "65537 B shared"),
        ({"registers": 257}, "257 registers"),
        ({"matrix_instructions": 0}, "no matrix instruction"),
        ({"waves": 1}, "1 waves"),
    ],
)
def test_each_limit_is_held(change: dict[str, int], message: str) -> None:
    assert offline_compile.broken_limits(figures(), product=True) == []
    broken = offline_compile.broken_limits(figures(**change), product=True)
    assert len(broken) == 1
    assert broken[0].startswith(message)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--target", "mi100"), 2, "invalid choice: 'mi100'"),
        (("--only", "nrom"), 2, "argument --only: invalid choice: 'nrom' (choose from"),
        (("--tile", "norm_forward"), 1, "must be KERNEL.SIZE=NUMBER"),
        (("--tile", "norm_forward.row=1"), 1, "norm_forward has the sizes rows"),
        (("--tile", "nrom.rows=1"), 1, "--tile 'nrom.rows=1': the kernels are attention_decode, "),
        (("--tile", "attention_forward.query=48"), 1, "must be a power of two"),
        (("--tile", "attention_forward.query=0"), 1, "must be a power of two"),
    ],
)
def test_wrong_words_are_one_line(
    words: tuple[str, ...], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words) == status
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
