"""Several responses to problems scored side by side, in whatever process this is."""

from __future__ import annotations

import functools
import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

from zaya_jax.rl.environments.protocol import Environment, Problem, Score, score_response

_THREADS = 4  # a verifier mostly waits for a sandbox or a server

_Calls = queue.SimpleQueue[Callable[[], None] | None]


class Scorer:
    """Environments by name; safe to use from several threads."""

    def __init__(
        self, environments: Sequence[Environment], *, has_thinking: bool, seconds: float = 600.0
    ) -> None:
        """Takes the environments.

        Args:
          environments: by whose names problems say where they come from.
          has_thinking: see `score_response`.
          seconds: that may pass without a score; a verifier that takes longer hangs.
        """
        self.environments: Mapping[str, Environment] = {e.name: e for e in environments}
        self._has_thinking, self._seconds = has_thinking, seconds
        self._calls: _Calls = queue.SimpleQueue()
        _start_threads(self._calls, _THREADS)
        weakref.finalize(self, self._calls.put, None)

    def scores(self, problem: Problem, responses: Sequence[str]) -> list[Score]:
        """One for each response to a problem of an environment known by name."""
        pairs = [(problem, response) for response in responses]
        return self.scores_of(self.environments[problem.source], pairs)

    def scores_of(
        self, environment: Environment, answered: Sequence[tuple[Problem, str]]
    ) -> list[Score]:
        """One for each (problem, response), in their order; broken where the verifier hangs."""
        batch = _Batch(len(answered))
        for position, (problem, response) in enumerate(answered):
            call = functools.partial(
                score_response, environment, problem, response, has_thinking=self._has_thinking
            )
            self._calls.put(functools.partial(batch.run, position, call))
        _start_threads(self._calls, batch.wait(self._seconds))  # in place of those that hang
        reason = f"{environment.name}: the verifier took longer than {self._seconds:g} s"
        missing = Score(0.0, reason, broken=True)
        return [missing if one is None else one for one in batch.scores]


class _Batch:
    """Scores that somebody waits for."""

    def __init__(self, size: int) -> None:
        self.scores: list[Score | None] = [None] * size
        self._ended: queue.SimpleQueue[tuple[int, Score]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._begun, self._closed = 0, False

    def run(self, position: int, call: Callable[[], Score]) -> None:
        """In a thread that scores; nothing once nobody waits any more."""
        with self._lock:
            if self._closed:
                return
            self._begun += 1
        self._ended.put((position, call()))

    def wait(self, seconds: float) -> int:
        """Until all have ended, or none has for so many seconds; how many hang then."""
        for received in range(len(self.scores)):
            try:
                position, score = self._ended.get(timeout=seconds)
            except queue.Empty:
                with self._lock:
                    self._closed = True
                    return self._begun - received
            self.scores[position] = score
        return 0


def _start_threads(calls: _Calls, count: int) -> None:
    """Threads that work until they are given None, which they leave for the others.

    Not a pool of the library: it waits at the end of the process for calls that never return.
    """

    def work() -> None:
        while (call := calls.get()) is not None:
            call()
        calls.put(None)

    for _ in range(count):
        threading.Thread(target=work, name="score", daemon=True).start()
