"""Several responses to problems scored side by side, in whatever process this is."""

from __future__ import annotations

import collections
import functools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from zaya_jax.rl.environments.protocol import Environment, Problem, Score, score_response

_THREADS = 4  # a verifier mostly waits for a sandbox or a server


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

    def scores(self, problem: Problem, responses: Sequence[str]) -> list[Score]:
        """One for each response to a problem of an environment known by name."""
        pairs = [(problem, response) for response in responses]
        return self.scores_of(self.environments[problem.source], pairs)

    def scores_of(
        self, environment: Environment, answered: Sequence[tuple[Problem, str]]
    ) -> list[Score]:
        """One for each (problem, response), in their order; broken where the verifier hangs."""
        calls = [
            functools.partial(
                score_response, environment, problem, response, has_thinking=self._has_thinking
            )
            for problem, response in answered
        ]
        reason = f"{environment.name}: the verifier took longer than {self._seconds:g} s"
        missing = Score(0.0, reason, broken=True)
        return [missing if one is None else one for one in _results(calls, self._seconds)]


def _results(calls: Sequence[Callable[[], Score]], seconds: float) -> list[Score | None]:
    """What the calls return; None for those left when none has returned for so many seconds."""
    results: list[Score | None] = [None] * len(calls)
    left = collections.deque(enumerate(calls))
    done: queue.SimpleQueue[tuple[int, Score]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            try:
                position, call = left.popleft()
            except IndexError:
                return
            done.put((position, call()))

    # Not a pool of the library: it waits at the end of the process for calls that never return.
    for _ in range(min(_THREADS, len(calls))):
        threading.Thread(target=work, name="score", daemon=True).start()
    for _ in calls:
        try:
            position, score = done.get(timeout=seconds)
        except queue.Empty:
            left.clear()
            break
        results[position] = score
    return results
