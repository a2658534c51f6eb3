"""A rollout engine in a Ray actor: the same engine in a process of its own, here or elsewhere.

Ray brings actors, placement on a cluster and the transport of weights; needs
`pip install 'zaya_jax[ray]'`. A worker's thread drives its actor as it would drive an engine beside
it, so that a lost actor is a failed worker: its groups are lost, other workers go on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from zaya_jax.rl.errors import RLError
from zaya_jax.rl.rollout_worker import RolloutEngine
from zaya_jax.rl.sampler import Sampled

_STEP_SECONDS = 0.5  # longest time in the engine before new weights can go in


@dataclasses.dataclass(frozen=True)
class ActorResources:
    """What Ray reserves for each engine."""

    cpus: float = 1.0
    gpus: float = 0.0


class RayEngine:
    """See the module. Used from one thread, as every `RolloutEngine`."""

    def __init__(self, make: Callable[[], RolloutEngine], resources: ActorResources) -> None:
        """Starts the actor; joins the cluster of RAY_ADDRESS, or makes one on this machine.

        Args:
          make: builds the engine in the actor; pickled with all it holds.
          resources: of the actor.

        Raises:
          RLError: when Ray is missing or has not got the resources.
        """
        self._ray = _ray()
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False, include_dashboard=False)
        _check_resources(self._ray, resources)
        host = self._ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus)(_Host)
        self._actor = host.remote(make)
        self._under_way = 0

    @property
    def idle(self) -> bool:
        """Whether no response is under way."""
        return self._under_way == 0

    def load_weights(self, variables: dict[str, Any]) -> int:
        """See `RolloutEngine`; the weights travel through Ray's object store."""
        weights = self._ray.put(jax.device_get(variables))
        return int(self._ray.get(self._actor.load_weights.remote(weights)))

    def submit(self, prompt: Sequence[int], seed: int) -> int:
        """See `RolloutEngine`."""
        number = int(self._ray.get(self._actor.submit.remote(list(prompt), seed)))
        self._under_way += 1
        return number

    def step(self) -> list[tuple[int, Sampled]]:
        """See `RolloutEngine`; as many steps as end a response or fill half a second."""
        ended: list[tuple[int, Sampled]] = self._ray.get(self._actor.step.remote())
        self._under_way -= len(ended)
        return ended

    def close(self) -> None:
        """Ends the actor."""
        self._ray.kill(self._actor)


class _Host:
    """What runs in the actor."""

    def __init__(self, make: Callable[[], RolloutEngine]) -> None:
        self._engine = make()

    def load_weights(self, variables: dict[str, Any]) -> int:
        return self._engine.load_weights(variables)

    def submit(self, prompt: list[int], seed: int) -> int:
        return self._engine.submit(prompt, seed)

    def step(self) -> list[tuple[int, Sampled]]:
        ended: list[tuple[int, Sampled]] = []
        stop = time.monotonic() + _STEP_SECONDS
        while not ended and not self._engine.idle and time.monotonic() < stop:
            ended = self._engine.step()
        return ended


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RLError(
            "rollout workers on Ray need the extra 'ray': pip install 'zaya_jax[ray]'"
        ) from error
    return ray


def _check_resources(ray: Any, resources: ActorResources) -> None:
    """An actor that fits nowhere would be waited for without end."""
    there = ray.cluster_resources()
    for name, wanted in (("CPU", resources.cpus), ("GPU", resources.gpus)):
        if wanted > there.get(name, 0.0):
            raise RLError(
                f"a rollout worker asks for {wanted:g} {name}, but the Ray cluster has "
                f"{there.get(name, 0.0):g}; lower ActorResources, or add nodes"
            )
