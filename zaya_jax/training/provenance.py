"""Where a run's code came from: git state and library versions, saved with every checkpoint."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from zaya_jax.training.resolved import to_plain
from zaya_jax.training.settings import RunConfig

_LIBRARIES = ("zaya_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def run_metadata(config: RunConfig) -> dict[str, Any]:
    """What a checkpoint says about the run: resolved config, git state, versions, device."""
    return {
        "config": to_plain(config),
        "git": git_state(),
        "versions": library_versions(),
        "device": jax.devices()[0].device_kind,
    }


def git_state() -> dict[str, Any] | None:
    """Commit and whether files differ from it; None when this code is not in a git checkout."""
    folder = Path(__file__).parent
    # A package installed inside somebody else's checkout is not tracked by it.
    if _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changes)}


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide numbers or formats."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed as a package"
    return versions


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
