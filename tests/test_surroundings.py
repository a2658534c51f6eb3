"""conftest.py really makes the surroundings strict."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from zaya_jax.training.metrics import load_metrics

TESTS = Path(__file__).parent


def test_annotated_shapes_are_checked_on_every_call() -> None:
    with pytest.raises(TypeCheckError, match="class_counts"):
        load_metrics(np.ones(3, np.float32))


def test_silent_broadcasting_is_an_error() -> None:
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)


def test_numbers_are_as_wide_as_in_a_run() -> None:
    assert jnp.asarray(1.0).dtype == jnp.float32
    assert jax.default_backend() in ("cpu", "gpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("def test_skips():\n    pytest.skip('reason')\n", 1),
        ("pytest.importorskip('no_such_library')\n", 1),
        ("@pytest.mark.gpu\ndef test_on_gpu():\n    raise AssertionError\n", 0),
        ("@pytest.mark.xfail(strict=True)\ndef test_known():\n    raise AssertionError\n", 0),
    ],
)
def test_no_skips_fails_a_run_that_skipped_anything_but_gpu_tests(
    tmp_path: Path, body: str, status: int
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("__init__.py", "conftest.py", "annotation_checks.py"):
        shutil.copy(TESTS / name, folder / name)
    shutil.copy(TESTS.parent / "pyproject.toml", tmp_path)
    (folder / "test_one.py").write_text(f"import pytest\n{body}")
    (folder / "test_two.py").write_text("def test_passes():\n    assert True\n")
    command = [sys.executable, "-m", "pytest", "--no-skips", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == status, result.stdout
