"""A command that runs where nothing is installed says so in one line."""

from __future__ import annotations

import importlib.util
import sys


def check_installed() -> None:
    """To be called while `python -m` imports the package of its command; else it does nothing.

    `python -m zaya_jax`, which lists the commands, needs nothing but Python.

    Raises:
      SystemExit: as `require_installed` does.
    """
    # What Python leaves there until it has found the module that it is to run.
    if sys.argv[:1] == ["-m"] and "zaya_jax" not in sys.orig_argv:
        require_installed()


def require_installed() -> None:
    """Ends a command that cannot run.

    Raises:
      SystemExit: with the mend, when this Python has no jax.
    """
    if importlib.util.find_spec("jax") is None:
        sys.exit(
            f"error: zaya_jax is not installed in {sys.executable}: `make demo` sets up .venv, "
            "`. .venv/bin/activate` uses it; in an environment of your own, `pip install -e .`"
        )
