"""When checkpoints are written and which are kept."""

from __future__ import annotations

import dataclasses

from zaya_jax.config import ConfigError


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """A checkpoint is also written at the last step and on SIGTERM or SIGINT.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    interval: int = 100  # steps between checkpoints; 0 = only at the end and on a signal
    keep_last: int = 2  # newest checkpoints kept; 2 leave one to fall back to
    keep_every: int = 0  # also keep checkpoints whose step is a multiple of this; 0 = none
    asynchronous: bool = True  # write in the background while training goes on

    def __post_init__(self) -> None:
        for name, least in {"interval": 0, "keep_last": 1, "keep_every": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(
                    f"checkpoint.{name}={getattr(self, name)!r}: must be at least {least}"
                )
