"""What a run does about a loss that is not finite or jumps.

With `guard.policy=stop` a bad loss ends the run. Otherwise a step whose loss is bad leaves the
state as it was, inside the compiled program, and is run once more on the same batch. The same bits
again mean that data and parameters lead there: the batch is skipped, or the run goes back to its
last checkpoint and leaves out the data since then. Other bits mean that the device computes
wrongly; the good result of the second try is taken, and the event says so.

Results are read after every step then, not one step late, which costs a little speed.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import statistics
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zaya_jax.config import ConfigError


class BadLossPolicy(enum.StrEnum):
    """What follows a loss that is not finite, or a spike."""

    STOP = "stop"  # end the run with an error; spikes are not looked for
    SKIP = "skip"  # leave the parameters alone and go on with the next batch
    REWIND = "rewind"  # go back to the last checkpoint and leave out the data since then


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """When a loss is bad, and what follows.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    policy: BadLossPolicy = BadLossPolicy.STOP  # what follows a bad loss
    spike_factor: float = 0.0  # a loss above this times the recent median is bad; 0 = only NaN is
    spike_window: int = 32  # losses of the median; no spike is seen before there are as many
    most_bad_steps: int = 10  # bad steps in the whole run before it stops all the same

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "policy", BadLossPolicy(self.policy))
        except ValueError:
            choices = ", ".join(BadLossPolicy)
            raise ConfigError(f"guard.policy={self.policy!r} must be one of: {choices}") from None
        if self.spike_factor != 0 and not self.spike_factor > 1:
            raise ConfigError(f"guard.spike_factor={self.spike_factor!r}: must be 0 or above 1")
        for name in ("spike_window", "most_bad_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"guard.{name}={getattr(self, name)!r}: must be at least 1")


class LossHistory:
    """The recent good losses, and the limit that follows from them."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._recent: collections.deque[float] = collections.deque(maxlen=config.spike_window)

    def add(self, loss: float) -> None:
        """Remembers the loss of a good step."""
        self._recent.append(loss)

    @property
    def limit(self) -> float:
        """The highest loss that is no spike."""
        if self._config.spike_factor == 0 or len(self._recent) < self._config.spike_window:
            return math.inf
        return self._config.spike_factor * statistics.median(self._recent)


def guarded_step(
    step: Any, state: Any, batch: Mapping[str, Any], loss_limit: Float[Array, ""]
) -> tuple[Any, Any]:
    """`step(state, batch)`, whose new state is taken only where loss and gradient are good.

    A bad step leaves everything as it was but `state.step`, which counts batches. Pure.
    """
    new_state, metrics = step(state, batch)
    is_good = is_good_step(metrics.loss, metrics.grad_norm, loss_limit)
    kept = jax.tree.map(lambda new, old: jnp.where(is_good, new, old), new_state, state)
    return dataclasses.replace(kept, step=new_state.step), metrics


def is_good_step(
    loss: Float[Array, ""], grad_norm: Float[Array, ""], loss_limit: Float[Array, ""]
) -> Any:
    """Finite, and no higher than the limit."""
    return jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (loss <= loss_limit)


def same_bits(one: Any, other: Any) -> bool:
    """Whether two steps' loss and gradient norm agree in every bit, NaN with NaN."""
    return all(
        jax.device_get(getattr(one, name)).tobytes()
        == jax.device_get(getattr(other, name)).tobytes()
        for name in ("loss", "grad_norm")
    )
