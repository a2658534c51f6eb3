"""The commands that the documents show run, not only parse.

`tests/test_house.py` parses every one. Here the page for newcomers is followed from top to bottom,
commands that only print run as they stand, and each other command names the test that runs it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

# Run as documented, in an empty folder, by `test_what_only_prints_prints`.
PRINTS = {
    "zaya_jax",
    "zaya_jax.data.preview",
    "zaya_jax.systems.doctor",
    "zaya_jax.systems.launch",
    "zaya_jax.systems.plan",
    "zaya_jax.systems.preflight",
    "zaya_jax.systems.sizing",
}

# Commands that need a checkpoint, a server, another machine or long work, and who runs them small.
RUN_ELSEWHERE = {
    "experiments.ablate": "tests/experiments/test_ablate.py",
    "experiments.cascade": "tests/experiments/test_cascade.py",
    "experiments.context_probe": "tests/experiments/test_context_probe.py",
    "experiments.evaluate": "tests/experiments/test_evaluate.py",
    "experiments.midtrain": "tests/experiments/test_stages.py",
    "experiments.pretrain": "tests/experiments/test_resume.py",
    "experiments.recipe": "tests/experiments/test_evidence.py",
    "experiments.refilter": "tests/rl/test_refilter.py",
    "experiments.replay_mismatch": "tests/experiments/test_evidence.py",
    "experiments.rl": "tests/rl/test_command.py",
    "experiments.sft": "tests/experiments/test_stages.py",
    "kernels_pallas.offline_compile": "tests/kernels_pallas/test_offline_compile.py",
    "kernels_pallas.tune": "tests/kernels_pallas/test_backend.py",
    "zaya_jax.checkpoint.convert": "tests/checkpoint/test_convert.py",
    "zaya_jax.checkpoint.inspect": "tests/checkpoint/test_commands.py",
    "zaya_jax.checkpoint.peft": "tests/checkpoint/test_peft_library.py",
    "zaya_jax.checkpoint.verify": "tests/checkpoint/test_commands.py",
    "zaya_jax.checkpoint.verify_release": "tests/checkpoint/test_commands.py",
    "zaya_jax.data.aggregation": "tests/data/test_aggregation.py",
    "zaya_jax.data.prepare": "tests/data/test_prepare.py",
    "zaya_jax.evaluation.diagnostics": "tests/evaluation/diagnostics/test_diagnostics.py",
    "zaya_jax.evaluation.harness": "tests/evaluation/test_harness.py",
    "zaya_jax.evaluation.rsa_view": "tests/evaluation/test_rsa_view.py",
    "zaya_jax.inference.chat": "tests/inference/test_commands.py",
    "zaya_jax.inference.generate": "tests/inference/test_commands.py",
    "zaya_jax.inference.server": "tests/inference/test_server_load.py",
    "zaya_jax.rl.environments.reasoning_gym_check": (
        "tests/rl/environments/test_reasoning_gym_check.py"
    ),
    "zaya_jax.rl.environments.rlve_check": "tests/rl/environments/test_rlve_gym.py",
    "zaya_jax.rl.report": "tests/rl/test_report.py",
    "zaya_jax.systems.bandwidth": "tests/systems/test_single_device.py",
    "zaya_jax.systems.collectives": "tests/systems/test_collectives.py",
    "zaya_jax.systems.matmul": "tests/systems/test_single_device.py",
    "zaya_jax.systems.supervise": "tests/systems/test_supervise.py",
    "zaya_jax.training.report": "tests/training/test_report.py",
}


def shown(document: Path) -> Iterator[list[str]]:
    """Words of each command in the document's code blocks."""
    text = document.read_text(encoding="utf-8")
    for block in re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"(?:python|curl|make) \S", line):
                yield shlex.split(line, comments=True)


def module_of(words: list[str]) -> str:
    """Module of a `python -m` command; nothing for another command."""
    return words[2] if words[:2] == ["python", "-m"] else ""


ALL = [(document, words) for document in DOCUMENTS for words in shown(document)]
# The compiler for GPUs is an extra of its own; where it is installed, its command runs too.
HAS_GPU_COMPILER = importlib.util.find_spec("jax_plugins") is not None
PRINTING = sorted(
    {
        shlex.join(words)
        for _, words in ALL
        if module_of(words) in PRINTS or ("--dry-run" in words and module_of(words))
        if HAS_GPU_COMPILER or words[-2:] != ["--compile", "gpu"]
    }
)


def test_every_documented_command_is_run_by_a_test() -> None:
    named = r"python -m ((?:experiments|zaya_jax|kernels_pallas)(?:\.\w+)*)"
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    modules = {module for text in texts for module in re.findall(named, text)}
    assert modules == PRINTS | set(RUN_ELSEWHERE)
    for module, test in RUN_ELSEWHERE.items():
        words = set(re.findall(r"\w+", (ROOT / test).read_text(encoding="utf-8")))
        assert module.rpartition(".")[2] in words, f"{test} does not speak of {module}"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder in which the documents' relative paths lead into this tree, and runs do not."""
    for name in ("docs", "experiments", "kernels_pallas", "zaya_jax", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    texts = tmp_path / "my_texts"
    texts.mkdir()
    for page in ROOT.glob("docs/*.md"):
        (texts / f"{page.stem}.txt").write_bytes(page.read_bytes())
    return tmp_path


def finished(words: list[str], folder: Path) -> str:
    """What a command prints.

    Raises:
      AssertionError: when it fails.
    """
    # A user's programs are compiled well; those of tests are not.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, *words[1:]]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", PRINTING)
def test_what_only_prints_prints(command: str, clone: Path) -> None:
    assert finished(shlex.split(command), clone).strip()


@pytest.mark.slow
def test_the_page_for_newcomers_can_be_followed(clone: Path) -> None:
    servers = []
    printed = ""
    try:
        for words in shown(ROOT / "docs" / "start.md"):
            module = module_of(words)
            if module == "zaya_jax.inference.server":
                command = [sys.executable, *words[1:]]
                servers.append(subprocess.Popen(command, cwd=clone))
            elif words[0] == "curl":
                printed += _answer(words)
            elif module:
                is_long = module == "experiments.pretrain" and "steps" not in words[-1]
                printed += finished(words + ["--config.train.steps=40"] * is_long, clone)
    finally:
        for server in servers:
            server.terminate()
            assert server.wait(timeout=120) in (0, -signal.SIGTERM)  # uvicorn raises it again
    for promise in (
        "report: runs/demo/report.html",
        "validation loss on my_texts: ",
        '{"status":"ok","model":"demo"}',
        "data: [DONE]",
        "36 of 36 leaves equal",
        "64 x AMD Instinct MI300X",
    ):
        assert promise in printed


def _answer(words: list[str]) -> str:
    """What curl is answered as soon as the server is up."""
    (address,) = [word for word in words if word.startswith("http")]
    body = words[words.index("-d") + 1].encode() if "-d" in words else None
    for _ in range(600):
        try:
            with urllib.request.urlopen(address, body, timeout=60) as answer:
                return str(answer.read(), "utf-8")
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"nothing answers at {address}")
