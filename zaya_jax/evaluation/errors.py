"""The error of this part that a user can mend."""

from __future__ import annotations

from zaya_jax.config import ConfigError


class EvaluationError(ConfigError):
    """A setting, data file or earlier result breaks a rule; names it and the mend."""
