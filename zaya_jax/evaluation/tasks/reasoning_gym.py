"""Problems of one data set of reasoning-gym, made from a seed; no file is read."""

from __future__ import annotations

from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.items import Item
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Score, last_tagged
from zaya_jax.rl.environments.reasoning_gym import ReasoningGym


class ReasoningGymTask:
    """The first `count` problems of a seed."""

    def __init__(
        self, data_set: str, *, difficulty: int, count: int, seed: int, unsafe: bool = False
    ) -> None:
        """Makes the problems.

        Raises:
          RLError: for an unknown data set, or without the library or bubblewrap.
          EvaluationError: for a difficulty that the data set does not have, or when the library
            cannot make a problem.
        """
        self._gym = ReasoningGym(unsafe=unsafe)
        self._environment = self._gym.environment(data_set)
        if not 0 <= difficulty <= self._environment.hardest:
            raise EvaluationError(
                f"difficulty={difficulty}: reasoning-gym data set {data_set!r} has 0 to "
                f"{self._environment.hardest}"
            )
        try:
            problems = [self._environment.sample(difficulty, seed + i) for i in range(count)]
        except BrokenEnvironmentError as error:
            raise EvaluationError(f"{error}; choose another seed or difficulty") from error
        self.items = [Item(str(own.seed), own.prompt, own) for own in problems]

    def grade(self, item: Item, answer: str) -> Score:
        """1 when the content of the last answer tags is right."""
        return self._environment.score(item.reference, answer)

    def vote(self, answer: str) -> str | None:
        """What stands between the last answer tags, spaces evened out."""
        content = last_tagged(answer)
        return None if content is None else " ".join(content.split())

    def close(self) -> None:
        """Ends the sandboxed library."""
        self._gym.close()
