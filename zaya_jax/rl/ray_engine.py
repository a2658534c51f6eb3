"""A rollout engine in a Ray actor: the same engine in a process of its own, here or elsewhere.

Ray brings actors, placement on a cluster and the transport of weights; needs
`pip install 'zaya_jax[ray]'`. A worker's thread drives its actor as it would drive an engine beside
it, so that a lost actor is a failed worker: its groups are lost, other workers go on.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.rollout_worker import RolloutEngine
from zaya_jax.rl.sampler import Sampled
from zaya_jax.rl.scoring import Scorer

_SCORING, _SCORING_CALLS = "scoring", 2  # calls beside the engine's own
_STEP_SECONDS = 0.5  # longest time in the engine before new weights can go in


@dataclasses.dataclass(frozen=True)
class ActorResources:
    """What Ray reserves for each engine."""

    cpus: float = 1.0
    gpus: float = 0.0


class SharedWeights:
    """One copy in Ray's object store for all engines that are given the same weights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._variables: dict[str, Any] | None = None
        self._stored: Any = None

    def put(self, variables: dict[str, Any]) -> Any:
        """A reference to them, for calls of actors; the weights before are let go."""
        with self._lock:
            if variables is not self._variables:
                self._stored = _ray().put(jax.device_get(variables))
                self._variables = variables
            return self._stored


class RayEngine:
    """See the module. Used from one thread, as every `RolloutEngine`.

    The actor is asked once for each of its steps: prompts wait here and travel with the next, and
    while what a step ended is taken here the actor is at the next one already.
    """

    def __init__(
        self,
        make: Callable[[], RolloutEngine],
        resources: ActorResources,
        weights: SharedWeights | None = None,
        make_scorer: Callable[[], Scorer] | None = None,
    ) -> None:
        """Starts the actor; joins the cluster of RAY_ADDRESS, or makes one on this machine.

        Args:
          make: builds the engine in the actor; pickled with all it holds.
          resources: of the actor.
          weights: shared with other engines that get the same.
          make_scorer: builds in the actor what scores its responses there; pickled too.

        Raises:
          RLError: when Ray is missing or has not got the resources.
        """
        self._ray = _ray()
        if not self._ray.is_initialized():
            _begin(self._ray)
        _check_resources(self._ray, resources, 1)
        reserve = self._ray.remote(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            concurrency_groups={_SCORING: _SCORING_CALLS},
        )
        threads = max(1, round(resources.cpus))
        self._actor = reserve(_Host).remote(make, make_scorer, threads)
        self._is_scoring = make_scorer is not None
        self._weights = weights or SharedWeights()
        self._prompts: list[tuple[int, list[int], int]] = []  # not yet sent
        self._step: Any = None  # the actor's answer to the last call of it
        self._submitted = self._under_way = 0

    @property
    def idle(self) -> bool:
        """Whether no response is under way."""
        return self._under_way == 0

    def load_weights(self, variables: dict[str, Any]) -> int:
        """See `RolloutEngine`; the weights travel through Ray's object store."""
        stored = self._weights.put(variables)
        return int(self._ray.get(self._actor.load_weights.remote(stored)))

    def submit(self, prompt: Sequence[int], seed: int) -> int:
        """See `RolloutEngine`; a prompt that the engine cannot serve fails its step."""
        number = self._submitted
        self._prompts.append((number, list(prompt), seed))
        self._submitted += 1
        self._under_way += 1
        return number

    def step(self) -> list[tuple[int, Sampled]]:
        """See `RolloutEngine`; as many steps as end a response or fill half a second."""
        if self._step is None:
            self._step = self._ask()
        ended = _unpacked(self._ray.get(self._step))
        self._under_way -= len(ended)
        self._step = None if self.idle else self._ask()
        return ended

    def scores(self, problem: Problem, responses: Sequence[str]) -> list[Score] | None:
        """See `RolloutEngine`."""
        if not self._is_scoring:
            return None
        call = self._actor.scores.options(concurrency_group=_SCORING)
        scores: list[Score] = self._ray.get(call.remote(problem, list(responses)))
        return scores

    def close(self) -> None:
        """Ends the actor."""
        self._ray.kill(self._actor)

    def _ask(self) -> Any:
        prompts, self._prompts = self._prompts, []
        return self._actor.step.remote(prompts)


class _Host:
    """What runs in the actor."""

    def __init__(
        self,
        make: Callable[[], RolloutEngine],
        make_scorer: Callable[[], Scorer] | None,
        threads: int,
    ) -> None:
        # XLA's threads for a CPU, read when it starts; engines side by side would each take all.
        os.environ["NPROC"] = str(threads)
        self._engine = make()
        self._scorer = make_scorer() if make_scorer else None
        self._numbers: dict[int, int] = {}  # the caller's, by the engine's

    def load_weights(self, variables: dict[str, Any]) -> int:
        return self._engine.load_weights(variables)

    def scores(self, problem: Problem, responses: list[str]) -> list[Score]:
        assert self._scorer is not None  # the caller asks only then
        return self._scorer.scores(problem, responses)

    def step(self, prompts: list[tuple[int, list[int], int]]) -> Packed | None:
        for number, prompt, seed in prompts:
            self._numbers[self._engine.submit(prompt, seed)] = number
        ended: list[tuple[int, Sampled]] = []
        stop = time.monotonic() + _STEP_SECONDS
        while not ended and not self._engine.idle and time.monotonic() < stop:
            ended = self._engine.step()
        return _packed([(self._numbers.pop(number), response) for number, response in ended])


class Packed(NamedTuple):
    """Responses end to end: a few arrays travel in a fraction of the time of many small ones."""

    numbers: np.ndarray  # [responses]
    truncated: np.ndarray  # [responses]
    lengths: np.ndarray  # [responses, 2], of tokens and routes
    tokens: np.ndarray  # [tokens of all]
    log_probs: np.ndarray
    versions: np.ndarray
    routes: np.ndarray  # [rows of all, layers]


def _packed(ended: Sequence[tuple[int, Sampled]]) -> Packed | None:
    if not ended:
        return None
    numbers, responses = zip(*ended, strict=True)
    return Packed(
        np.array(numbers),
        np.array([one.truncated for one in responses]),
        np.array([(len(one.tokens), len(one.routes)) for one in responses]),
        *(
            np.concatenate([getattr(one, name) for one in responses])
            for name in ("tokens", "log_probs", "versions", "routes")
        ),
    )


def _unpacked(packed: Packed | None) -> list[tuple[int, Sampled]]:
    if packed is None:
        return []
    ends = np.cumsum(packed.lengths, axis=0)
    tokens, routes = ends[:-1].T
    parts = zip(
        np.split(packed.tokens, tokens),
        np.split(packed.log_probs, tokens),
        np.split(packed.versions, tokens),
        np.split(packed.routes, routes),
        packed.truncated.tolist(),
        strict=True,
    )
    return [
        (number, Sampled(*fields))
        for number, fields in zip(packed.numbers.tolist(), parts, strict=True)
    ]


def ray_engines(
    actors: int,
    make: Callable[[], RolloutEngine],
    resources: ActorResources,
    make_scorer: Callable[[], Scorer] | None = None,
) -> list[RolloutEngine]:
    """So many engines that share one copy of each set of weights; arguments as of `RayEngine`.

    Raises:
      RLError: when Ray is missing or has not got the resources of all.
    """
    ray, weights = _ray(), SharedWeights()
    if not ray.is_initialized():
        _begin(ray)
    _check_resources(ray, resources, actors)
    return [RayEngine(make, resources, weights, make_scorer) for _ in range(actors)]


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RLError(
            "rollout workers on Ray need the extra 'ray': pip install 'zaya_jax[ray]'"
        ) from error
    return ray


def _begin(ray: Any) -> None:
    """Joins a cluster or begins one.

    A cluster of our own runs actors at the trainer's niceness, not at Ray's 15: rollouts are half
    of the work, and a machine that both share would let them starve.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(log_to_driver=False, include_dashboard=False)


def _check_resources(ray: Any, resources: ActorResources, actors: int) -> None:
    """An actor that fits nowhere would be waited for without end."""
    there = ray.cluster_resources()
    for name, each in (("CPU", resources.cpus), ("GPU", resources.gpus)):
        if each * actors > there.get(name, 0.0):
            who = "a rollout worker asks" if actors == 1 else f"{actors} rollout workers ask"
            raise RLError(
                f"{who} for {each * actors:g} {name}, but the Ray cluster has "
                f"{there.get(name, 0.0):g}; lower ActorResources, or add nodes"
            )
