"""Strict surroundings for every test: JAX on the CPU, no silent broadcasting, checked annotations.

This file must run before anything imports jax, zaya_jax or kernels_pallas.
"""

from __future__ import annotations

import importlib.metadata
import os

# Tests run tiny programs once: compiling quickly matters, running quickly does not.
QUICK_FLAGS = ["--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones know no such flag
    QUICK_FLAGS.append("--xla_cpu_use_fusion_emitters=false")  # more than halves compilation

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", " ".join(QUICK_FLAGS))

from jaxtyping import install_import_hook

from tests import annotation_checks

# Shapes and dtypes in signatures are checked on every call while tests run.
CHECKER = f"{annotation_checks.__name__}.{annotation_checks.check_annotations.__name__}"
install_import_hook(["zaya_jax", "kernels_pallas"], CHECKER)

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_enable_x64", False)
# For meshes; whatever names no device runs on the first.
jax.config.update("jax_num_cpu_devices", 8)

ON_GPU = os.environ["JAX_PLATFORMS"] not in ("", "cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail when a test was skipped for any reason but the lack of a GPU",
    )
    parser.addoption(
        "--golden",
        action="store_true",
        help="compare with stored results of the PyTorch implementation even if it is installed",
    )


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs compiled once are read back, also by the commands that tests start.

    With JAX_COMPILATION_CACHE_DIR set they outlive the session.
    """
    folder = os.environ.setdefault(
        "JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "jax_cache")
    )
    seconds = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(seconds))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ON_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: JAX_PLATFORMS=cuda or rocm"))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--no-skips"):
        config.pluginmanager.register(_NoSkips(config), "zaya-no-skips")


class _NoSkips:
    """Turns a run with unexpected skips into a failed one and names them.

    Works in the process that reports, so it sees the skips of every xdist worker.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.is_worker = hasattr(config, "workerinput")
        self.skipped: list[str] = []

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        is_gpu = "gpu" in getattr(report, "keywords", {})
        if report.skipped and not hasattr(report, "wasxfail") and not is_gpu:
            self.skipped.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and not self.is_worker and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            names = ", ".join(self.skipped)
            terminalreporter.write_line(f"--no-skips: these tests were skipped: {names}", red=True)
