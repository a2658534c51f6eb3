"""Every command is listed and shows an example of itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from zaya_jax.__main__ import Command, commands, main

ROOT = Path(__file__).parents[1]
COMMANDS = list(commands())


def test_the_list_holds_what_runs_and_nothing_else():
    modules = {command.module for command in COMMANDS}
    assert {
        "experiments.pretrain",
        "zaya_jax.checkpoint.convert",
        "zaya_jax.inference.server",  # a package with __main__.py
        "kernels_pallas.offline_compile",
    } <= modules
    assert not modules & {"zaya_jax", "zaya_jax.config", "experiments.command_line"}


@pytest.mark.parametrize("command", COMMANDS, ids=[c.module for c in COMMANDS])
def test_a_command_says_what_it_does_in_a_line(command: Command):
    assert command.summary.endswith("."), command.summary
    assert importlib.util.find_spec(command.module) is not None


def test_a_word_selects(capsys: pytest.CaptureFixture[str]):
    assert main(["checkpoint.verify"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert [line.split()[2] for line in lines] == [
        "zaya_jax.checkpoint.verify",
        "zaya_jax.checkpoint.verify_release",
    ]
    assert main(["no such thing"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=[c.module for c in COMMANDS])
def test_help_shows_an_example(command: Command):
    words = [sys.executable, "-m", command.module, "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    _, _, body = done.stdout.partition("\n\n")  # behind the usage
    assert f"python -m {command.module} " in body
