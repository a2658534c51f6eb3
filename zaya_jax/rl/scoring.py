"""Several responses to a problem scored side by side, in whatever process this is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from zaya_jax.rl.environments.protocol import Environment, Problem, Score, score_response

_THREADS = 4  # a verifier mostly waits for a sandbox or a server


class Scorer:
    """Environments by name; safe to use from several threads."""

    def __init__(self, environments: Sequence[Environment], *, has_thinking: bool) -> None:
        """Takes the environments.

        Args:
          environments: by whose names problems say where they come from.
          has_thinking: see `score_response`.
        """
        self.environments: Mapping[str, Environment] = {e.name: e for e in environments}
        self._has_thinking = has_thinking
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="score")

    def scores(self, problem: Problem, responses: Sequence[str]) -> list[Score]:
        """One for each response, in their order."""
        environment = self.environments[problem.source]
        return list(self._pool.map(lambda text: self.score(environment, problem, text), responses))

    def score(self, environment: Environment, problem: Problem, response: str) -> Score:
        """Of one response, by an environment that need not be among those known by name."""
        return score_response(environment, problem, response, has_thinking=self._has_thinking)
