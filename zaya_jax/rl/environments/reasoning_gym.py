"""The data sets of reasoning-gym, one environment each.

Difficulty d sets every attribute of the data set's curriculum to level d, each cut at its own last
level; data sets without a curriculum have difficulty 0 only. Scores are graded in many ways by the
library (a containing answer gets its share of length, an empty one 0.01); a response counts as
right from `threshold` on and is worth 0 or 1.

Making and scoring run in the sandbox: some scorers evaluate the answer as Python or sympy
expression, and both can take forever. A scorer that raises or hangs on an answer makes it wrong.
A problem whose own answer is not right counts as not made.
"""

from __future__ import annotations

from typing import Any

from zaya_jax.rl.environments.protocol import (
    ANSWER_INSTRUCTION,
    BrokenEnvironmentError,
    Problem,
    Score,
    last_tagged,
)
from zaya_jax.rl.environments.verifier import library_server
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox_server import CallError, SandboxServer, ServerError

SERVER_SOURCE = """
import json
import reasoning_gym
from reasoning_gym.factory import DATASETS, create_curriculum, create_dataset, has_curriculum

def levels(name):
    if not has_curriculum(name):
        return 1
    return max([len(a.levels) for a in create_curriculum(name).attributes.values()], default=1)

def dataset(name, level, seed, size=1):
    if not has_curriculum(name):
        return create_dataset(name, seed=seed, size=size)
    curriculum = create_curriculum(name)
    curriculum.set_global_level(level)
    config = curriculum.generate_configuration({"seed": seed, "size": size})
    return DATASETS[name][0](config)

def handle(request):
    kind, name = request["kind"], request["name"]
    if kind == "levels":
        return {"levels": {n: levels(n) for n in DATASETS}}
    data = dataset(name, request["level"], request["seed"])
    entry = data[0]  # made again for scoring: not every entry survives JSON
    if kind == "sample":
        answer = entry["answer"]
        own = None if answer is None else float(data.score_answer(answer=str(answer), entry=entry))
        return {"question": entry["question"], "answer": answer, "own": own}
    return {"score": float(data.score_answer(answer=request["answer"], entry=entry))}
"""

# Exceptions, checked against reasoning-gym 0.1.25.
UNUSABLE = {
    "composite": "mixes other data sets and needs a configuration of its own",
    "game_of_life_halting": "scores text without an answer as right",
    "knight_swap": "breaks its own rules at every level, and takes half a minute for a problem",
    "puzzle24": "takes the solution of any other puzzle, so that one answer is always right",
}
# Where other levels have a refused configuration, or problems that take minutes to make.
USABLE_LEVELS = {
    "caesar_cipher": (0, 1),
    "jugs": (0, 1),
    "modulo_grid": (0, 2, 3, 4, 5),
    "rubiks_cube": (0, 1, 2, 3),
    "survo": (0, 1),
}


class ReasoningGym:
    """All data sets behind one sandboxed server."""

    def __init__(self, *, seconds: float = 20.0, unsafe: bool = False) -> None:
        """Starts the server.

        Args:
          seconds: for making or scoring one problem.
          unsafe: see `zaya_jax.rl.sandbox.Sandbox`.

        Raises:
          RLError: when reasoning-gym or bubblewrap is missing.
        """
        self.seconds = seconds
        self._server: SandboxServer = library_server("reasoning_gym", SERVER_SOURCE, unsafe=unsafe)
        levels = self._server.call({"kind": "levels", "name": ""}, seconds=60.0)["levels"]
        self.levels: dict[str, tuple[int, ...]] = {
            name: USABLE_LEVELS.get(name, tuple(range(count)))
            for name, count in levels.items()
            if name not in UNUSABLE
        }

    @property
    def names(self) -> list[str]:
        """Usable data sets, sorted."""
        return sorted(self.levels)

    def environment(self, name: str, *, threshold: float = 1.0) -> ReasoningGymEnvironment:
        """One data set as an environment.

        Raises:
          RLError: for an unknown or unusable data set.
        """
        return ReasoningGymEnvironment(self, self.known(name), threshold)

    def known(self, name: str) -> str:
        """The name again, of a usable data set.

        Raises:
          RLError: for an unknown or unusable data set.
        """
        if name in UNUSABLE:
            raise RLError(f"reasoning-gym data set {name!r} cannot be used: it {UNUSABLE[name]}")
        if name not in self.levels:
            raise RLError(f"reasoning-gym has no data set {name!r}; it has {', '.join(self.names)}")
        return name

    def call(self, kind: str, name: str, **request: Any) -> dict[str, Any]:
        """One request to the server."""
        return self._server.call({"kind": kind, "name": name, **request}, seconds=self.seconds)

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


class ReasoningGymEnvironment:
    """One data set of reasoning-gym."""

    def __init__(self, gym: ReasoningGym, name: str, threshold: float) -> None:
        self._gym, self._dataset, self._threshold = gym, name, threshold

    @property
    def name(self) -> str:
        """`reasoning_gym/` and the data set's name."""
        return f"reasoning_gym/{self._dataset}"

    @property
    def hardest(self) -> int:
        """Number of the last usable level."""
        return len(self._gym.levels[self._dataset]) - 1

    def sample(self, difficulty: int, seed: int) -> Problem:
        """Problem of a level and seed; the answer in its reference is None where many are right."""
        place = f"{self.name} difficulty {difficulty} seed {seed}"
        try:
            made = self._gym.call("sample", self._dataset, level=self._level(difficulty), seed=seed)
        except ServerError as error:
            raise BrokenEnvironmentError(f"{place}: {error}") from error
        if made["own"] is not None and made["own"] < self._threshold:
            raise BrokenEnvironmentError(f"{place}: its own answer is graded {made['own']:g}")
        prompt = f"{made['question'].rstrip()}\n\n{ANSWER_INSTRUCTION}"
        return Problem(self.name, difficulty, seed, prompt, {"answer": made["answer"]})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 for the content of the last pair of answer tags being right, else 0."""
        content = last_tagged(answer)
        if content is None:
            return Score(0.0, "no answer tags")
        level = self._level(problem.difficulty)
        try:
            graded = self._gym.call(
                "score", self._dataset, level=level, seed=problem.seed, answer=content
            )["score"]
        except CallError as error:
            return Score(0.0, f"the scorer refused the answer: {error}")
        except ServerError as error:
            raise BrokenEnvironmentError(f"{self.name}: {error}") from error
        right = graded >= self._threshold
        return Score(float(right), "right" if right else f"graded {graded:g}")

    def _level(self, difficulty: int) -> int:
        """The curriculum's level of a difficulty; beyond the last usable one, that one."""
        return self._gym.levels[self._dataset][min(difficulty, self.hardest)]
