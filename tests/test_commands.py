"""Every command is listed and shows an example of itself."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zaya_jax.__main__ import Command, commands, main
from zaya_jax.completion import completion_script, options_of

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


@pytest.mark.parametrize(
    "words",
    [
        ["zaya_jax.systems.doctor"],
        ["experiments.pretrain", "--help"],
        ["zaya_jax", "--completion=zsh"],
    ],
)
def test_without_the_packages_a_command_says_how_to_get_them(words: list[str]):
    # -S: as a Python in which nothing was installed.
    command = [sys.executable, "-S", "-m", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(r"error: zaya_jax is not installed in .*make demo.*\n", ended.stderr)


def test_the_list_of_commands_needs_no_packages():
    command = [sys.executable, "-S", "-m", "zaya_jax", "doctor"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("python -m zaya_jax.systems.doctor")


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
    offered = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", body, re.MULTILINE))
    assert offered <= set(options_of(command.module))


def _completed(words: list[str]) -> list[str]:
    """What bash offers for the last of these words."""
    script = completion_script(["experiments.cascade", "experiments.sft"], "bash")
    line = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _zaya_jax"
    command = ["bash", "-c", f'{script}{line}\nprintf "%s\\n" "${{COMPREPLY[@]}}"']
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_shell_completes_commands_and_their_options():
    assert _completed(["python", "-m", "experiments.s"]) == ["experiments.sft"]
    assert _completed(["python", "-m", "experiments.cascade", "--dr"]) == ["--dry-run"]
    # sft's parser is made two modules away.
    assert _completed(["python", "-m", "experiments.sft", "--config."]) == ["--config."]
    assert _completed(["python", "script.py", "--dr"]) == []


def test_the_completion_of_every_command_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["--completion", "zsh"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("autoload -U +X bashcompinit")
    for command in COMMANDS:
        assert f"    {command.module}) COMPREPLY" in printed
