"""Every known mistake turns a parity test red; the untouched tree keeps them green."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity.mutations import MUTATIONS, Mutation, mutated

ROOT = Path(__file__).parents[2]
COPIED = ("zaya_jax", "kernels_pallas", "tests", "pyproject.toml")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("mutant")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    return copy


def run_parity(tree: Path, case: str) -> subprocess.CompletedProcess[str]:
    """Forward parity of one case against its golden file, in the tree's own source."""
    selection = f"({case}) and (layer_routes or logits_and)"
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--golden", "-k", selection]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/parity/test_transformers.py"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_edit_still_finds_its_place() -> None:
    for mutation in MUTATIONS:
        source = (ROOT / mutation.file).read_text()
        assert mutated(mutation, source) != source


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted({mutation.case for mutation in MUTATIONS}))
def test_the_untouched_tree_is_green(tree: Path, case: str) -> None:
    result = run_parity(tree, case)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_the_mistake_turns_a_test_red(tree: Path, mutation: Mutation) -> None:
    file = tree / mutation.file
    original = file.read_text()
    file.write_text(mutated(mutation, original))
    try:
        result = run_parity(tree, mutation.case)
    finally:
        file.write_text(original)
    # A failed comparison, not a program that no longer runs.
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout[-3000:]
    assert "AssertionError" in result.stdout, result.stdout[-3000:]
    assert "TypeCheckError" not in result.stdout, result.stdout[-3000:]
