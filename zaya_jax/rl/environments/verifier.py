"""Sandboxed servers for environments that need libraries of the extra `rl`."""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox import Sandbox
from zaya_jax.rl.sandbox_command import Limits
from zaya_jax.rl.sandbox_server import SandboxServer

# Of the server as a whole; every call has its own limits on time. Nothing needs to be written.
SERVER_LIMITS = Limits(
    cpu_seconds=1_000_000, memory_bytes=4 * 2**30, processes=64, file_bytes=2**16, open_files=256
)


def library_server(
    library: str, source: str, *, packages: Sequence[Path] = (), unsafe: bool = False
) -> SandboxServer:
    """A server that may import the installed packages.

    Args:
      library: module it needs, for the error message when it is missing.
      source: Python text that defines `handle`.
      packages: more folders it may import from.
      unsafe: see `Sandbox`.

    Raises:
      RLError: when the library is not installed.
      SandboxError: when there is no bubblewrap.
    """
    if importlib.util.find_spec(library) is None:
        raise RLError(
            f"{library} is not installed: pip install 'zaya_jax[rl]' brings what environments need"
        )
    shown = (Path(sysconfig.get_paths()["purelib"]), *packages)
    return SandboxServer(source, Sandbox(SERVER_LIMITS, packages=shown, unsafe=unsafe))
