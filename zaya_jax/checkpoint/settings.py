"""When checkpoints are written and which are kept."""

from __future__ import annotations

import dataclasses
import enum

from zaya_jax.config import ConfigError


class Tier(enum.StrEnum):
    """Where a checkpoint is written."""

    DURABLE = "durable"  # DIR/checkpoints
    LOCAL = "local"  # checkpoint.local_directory, each process what it needs itself


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
    local_directory: str = ""  # fast disk for more of them, each node's own or shared; "" = none
    local_interval: int = 0  # steps between checkpoints on it; 0 = none
    local_keep_last: int = 2  # newest ones kept there; 2 leave one to fall back to

    def __post_init__(self) -> None:
        least = {"interval": 0, "keep_last": 1, "keep_every": 0}
        least |= {"local_interval": 0, "local_keep_last": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ConfigError(
                    f"checkpoint.{name}={getattr(self, name)!r}: must be at least {smallest}"
                )
        if bool(self.local_directory) != bool(self.local_interval):
            raise ConfigError(
                f"checkpoint.local_directory={self.local_directory!r}, checkpoint.local_interval="
                f"{self.local_interval}: give both or none"
            )

    def tier_at(self, step: int, *, is_last: bool) -> Tier | None:
        """Where the checkpoint of a step goes; None: there is none."""
        if is_last or (self.interval > 0 and step % self.interval == 0):
            return Tier.DURABLE
        is_local = self.local_interval > 0 and step % self.local_interval == 0
        return Tier.LOCAL if is_local else None
