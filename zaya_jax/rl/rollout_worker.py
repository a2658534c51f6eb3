"""A thread that keeps one engine busy with groups of rollouts, while training goes on elsewhere.

New weights go in between two steps of the engine; responses under way keep their caches and go on
with the new weights (PipelineRL, arXiv 2509.19128), every token tagged with the trainer's updates
its weights had seen. Finished groups are scored in threads of their own, for a slow verifier must
not stop the engine.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import numpy as np

from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.group_maker import Asked, GroupMaker
from zaya_jax.rl.records import RolloutGroup
from zaya_jax.rl.sampler import Sampled

_PAUSE_SECONDS = 0.005  # while there is nothing to do


@runtime_checkable
class RolloutEngine(Protocol):
    """What a worker asks of an engine, here or elsewhere; used from one thread."""

    @property
    def idle(self) -> bool:
        """Whether no response is under way."""
        ...

    def load_weights(self, variables: dict[str, Any]) -> int:
        """Takes new weights without losing responses under way; returns their version."""
        ...

    def submit(self, prompt: Sequence[int], seed: int) -> int:
        """Begins a response; returns its number."""
        ...

    def step(self) -> list[tuple[int, Sampled]]:
        """Goes on with all responses; returns those that ended, by number."""
        ...

    def scores(self, problem: Problem, responses: Sequence[str]) -> list[Score] | None:
        """Scores of responses, computed where the engine is; None: they are to be scored here.

        From any thread.
        """
        ...

    def close(self) -> None:
        """Gives back what the engine holds outside of this process."""
        ...


@dataclasses.dataclass
class WorkerCounts:
    """What a worker did since it started."""

    tokens: int = 0  # drawn, of finished responses
    busy_seconds: float = 0.0  # in the engine
    idle_seconds: float = 0.0  # with nothing to do, for the buffer was full


@dataclasses.dataclass
class _Group:
    asked: Asked
    responses: dict[int, Sampled | None]  # by number, in the order of their seeds


class RolloutWorker:
    """See the module.

    Attributes:
      counts: for reading.
      failure: why the thread ended early; None while all is well.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        maker: GroupMaker,
        *,
        name: str,
        seed: int,
        groups_in_flight: int,
        least_groups: int = 1,
        may_start: Callable[[int], bool],
        deliver: Callable[[RolloutGroup | None], None],
    ) -> None:
        """Does nothing until `start`.

        Args:
          engine: of this worker alone.
          maker: problems and scores.
          name: of its thread.
          seed: from which responses get theirs.
          groups_in_flight: most groups under way.
          least_groups: that an idle engine begins with: its step costs nearly the same for one
            as for many.
          may_start: whether so many more groups are wanted now.
          deliver: takes each finished group; None for one that broke.
        """
        self.counts = WorkerCounts()
        self.failure: BaseException | None = None
        self._engine, self._maker, self._deliver = engine, maker, deliver
        self._most, self._least, self._may_start = groups_in_flight, least_groups, may_start
        self._seeds = np.random.default_rng(seed)
        self._updates_of_version: dict[int, int] = {}
        self._groups: dict[int, _Group] = {}  # by number of response
        self._sampling = 0  # groups in the engine
        self._unscored = 0  # groups that the engine has finished
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._new_weights: tuple[dict[str, Any], int] | None = None
        self._has_ended = False
        self._weights_changed = threading.Condition()
        self._scoring = ThreadPoolExecutor(2, thread_name_prefix=f"{name}-score")
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def groups_under_way(self) -> int:
        """Groups begun and not delivered; 0 once the thread has ended."""
        with self._lock:
            return self._sampling + self._unscored if self.running else 0

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def start(self, variables: dict[str, Any], updates: int) -> None:
        """Begins with weights that have seen so many updates."""
        self._new_weights = (variables, updates)
        self._thread.start()

    def offer_weights(self, variables: dict[str, Any], updates: int) -> None:
        """The engine takes them after its present step."""
        with self._weights_changed:
            self._new_weights = (variables, updates)

    def wait_for_weights(self) -> None:
        """Returns when the engine has taken what was offered, or has failed."""
        with self._weights_changed:
            self._weights_changed.wait_for(lambda: self._new_weights is None or self._has_ended)

    def stop(self) -> None:
        """Ends after the engine's present step; groups under way are lost."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._scoring.shutdown(cancel_futures=True)
        self._engine.close()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._take_weights()
                self._start_groups()
                start = time.monotonic()
                if self._engine.idle:
                    self._stopping.wait(_PAUSE_SECONDS)
                    self.counts.idle_seconds += time.monotonic() - start
                    continue
                ended = self._engine.step()
                self.counts.busy_seconds += time.monotonic() - start
                for number, response in ended:
                    self._take_response(number, response)
        except Exception as error:  # the trainer reports it; other workers go on
            self.failure = error
        finally:
            with self._weights_changed:
                self._has_ended, self._new_weights = True, None
                self._weights_changed.notify_all()

    def _take_weights(self) -> None:
        with self._weights_changed:
            if self._new_weights is not None:
                variables, updates = self._new_weights
                self._updates_of_version[self._engine.load_weights(variables)] = updates
                self._new_weights = None
                self._weights_changed.notify_all()

    def _start_groups(self) -> None:
        if self._engine.idle and not self._may_start(self._least):
            return
        while self._sampling < self._most and self._may_start(1):
            asked = self._maker.draw()
            if asked is None:
                self._deliver(None)
                continue
            self._sampling += 1
            seeds = self._seeds.integers(2**62, size=self._maker.config.group_size)
            numbers = [self._engine.submit(asked.prompt, int(seed)) for seed in seeds]
            group = _Group(asked, dict.fromkeys(numbers))
            self._groups.update(dict.fromkeys(numbers, group))

    def _take_response(self, number: int, response: Sampled) -> None:
        updates = [self._updates_of_version[int(version)] for version in response.versions]
        response = response._replace(versions=np.array(updates, np.int32))
        self.counts.tokens += len(response.tokens)
        group = self._groups.pop(number)
        group.responses[number] = response
        responses = [one for one in group.responses.values() if one is not None]
        if len(responses) == len(group.responses):
            with self._lock:
                self._sampling, self._unscored = self._sampling - 1, self._unscored + 1
            self._scoring.submit(self._score, group.asked, responses)

    def _score(self, asked: Asked, responses: list[Sampled]) -> None:
        try:
            texts = [self._maker.text_of(response.tokens) for response in responses]
            scores = self._engine.scores(asked.problem, texts)
            self._deliver(self._maker.finish(asked, responses, scores))
        except Exception as error:  # would vanish in the pool
            self.failure = error
            self._stopping.set()
        finally:
            with self._lock:
                self._unscored -= 1
