"""The ZAYA1 family of MoE++ language models in JAX.

from zaya_jax import ModelConfig, Transformer, load_checkpoint
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zaya_jax.installation import check_installed

if TYPE_CHECKING:
    from zaya_jax.checkpoint.load import load_checkpoint
    from zaya_jax.config import ModelConfig
    from zaya_jax.model.transformer import Transformer

__all__ = ["ModelConfig", "Transformer", "load_checkpoint"]

check_installed()

_HOMES = {
    "ModelConfig": "zaya_jax.config",
    "Transformer": "zaya_jax.model.transformer",
    "load_checkpoint": "zaya_jax.checkpoint.load",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zaya_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
