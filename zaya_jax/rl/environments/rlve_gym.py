"""The environments of RLVE-Gym, from a checkout of it that the user has.

Difficulty d of an environment is d updates of its parameter controller, counted from a new one,
since controllers only move up; of the parameter sets that a level offers the seed draws one. The
reward is the gym's `accuracy`: whether its graded reward reaches the environment's own threshold.

All of its code runs in the sandbox, in a process of its own for every call: making a problem
reseeds the global random streams and may go on after its time is up, and some verifiers evaluate
what the model wrote. The gym imports torch only to seed it; an empty stand-in takes its place. A
problem is made again for scoring, because many of them do not survive JSON; should the second one
differ from the first, the score counts as broken.

RLVE: arXiv 2511.07317.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
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
import hashlib, random, sys, types

class Nothing(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name)

    def __call__(self, *values, **named):
        return None

sys.modules["torch"] = Nothing("torch")
from Gym.environments import identifier2environment
from Gym.parameter_controllers import identifier2controller

def make(request):
    controller = identifier2controller[request["name"]]()
    for _ in range(request["difficulty"]):
        controller.update()
    parameter = random.Random(request["seed"]).choice(controller.get_parameter_list())
    markers = ("<answer>", "</answer>")
    environment = identifier2environment[request["name"]](answer_markers=markers)
    if not environment.generator(request["seed"], parameter, request["seconds"]):
        return environment, None
    return environment, environment.prompt_generator()

def handle(request):
    if request["kind"] == "names":
        return {"names": sorted(set(identifier2environment) & set(identifier2controller))}
    environment, prompt = make(request)
    if prompt is None:
        return {"made": False}
    if request["kind"] == "sample":
        if len(prompt) > request["most_characters"]:
            return {"made": True, "characters": len(prompt)}
        answer = environment.parameter.get("reference_answer")
        return {"made": True, "prompt": prompt, "answer": None if answer is None else str(answer)}
    if hashlib.sha256(prompt.encode()).hexdigest() != request["digest"]:
        return {"made": True, "same": False}
    found = environment.verifier("<answer>" + request["answer"] + "</answer>")
    right, graded = bool(found["accuracy"]), float(found["reward"])
    return {"made": True, "same": True, "right": right, "graded": graded}
"""

# Checked against the gym's 400 environments.
UNUSABLE = {"PolyaModel": "looks for the answer in the wrong place, so that none is right"}


class RLVEGym:
    """All environments of a checkout behind one sandboxed server."""

    def __init__(
        self,
        checkout: str | Path,
        *,
        seconds: float = 20.0,
        most_prompt_characters: int = 40_000,
        unsafe: bool = False,
    ) -> None:
        """Starts the server, which imports everything.

        Args:
          checkout: folder that holds the folder `Gym`.
          seconds: for making or scoring one problem.
          most_prompt_characters: longer problems count as not made: at high difficulties some have
            millions.
          unsafe: see `zaya_jax.rl.sandbox.Sandbox`.

        Raises:
          RLError: when the folder is no checkout or cannot be imported, or bubblewrap is missing.
        """
        folder = Path(checkout).expanduser()
        for part in ("environments", "parameter_controllers"):
            if not (folder / "Gym" / part / "__init__.py").is_file():
                raise RLError(
                    f"{str(checkout)!r} is no checkout of RLVE-Gym: it has no Gym/{part}; "
                    "give the folder that holds the folder Gym"
                )
        self.seconds, self.most_prompt_characters = seconds, most_prompt_characters
        self._server: SandboxServer = library_server(
            "numpy", SERVER_SOURCE, packages=[folder], unsafe=unsafe
        )
        try:
            names = self._server.call({"kind": "names"}, seconds=60.0)["names"]
        except ServerError as error:
            self._server.close()
            raise RLError(
                f"RLVE-Gym at {str(checkout)!r} cannot be imported: {error}. "
                "It needs networkx and sympy, and files that everybody may read"
            ) from error
        self.names: tuple[str, ...] = tuple(name for name in names if name not in UNUSABLE)

    def environment(self, name: str) -> RLVEEnvironment:
        """One of its environments.

        Raises:
          RLError: for an unknown or unusable one.
        """
        if name in UNUSABLE:
            raise RLError(f"RLVE-Gym environment {name!r} cannot be used: it {UNUSABLE[name]}")
        if name not in self.names:
            raise RLError(f"RLVE-Gym has no environment {name!r}; it has {', '.join(self.names)}")
        return RLVEEnvironment(self, name)

    def call(self, kind: str, name: str, difficulty: int, seed: int, **more: Any) -> dict[str, Any]:
        """One request to the server about one problem."""
        request = {"kind": kind, "name": name, "difficulty": difficulty, "seed": seed, **more}
        return self._server.call({**request, "seconds": self.seconds}, seconds=self.seconds)

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


class RLVEEnvironment:
    """One environment of RLVE-Gym."""

    hardest = None

    def __init__(self, gym: RLVEGym, name: str) -> None:
        self._gym, self._own_name = gym, name

    @property
    def name(self) -> str:
        """`rlve/` and the gym's own name."""
        return f"rlve/{self._own_name}"

    def sample(self, difficulty: int, seed: int) -> Problem:
        """The problem of a level and seed; without a known answer, that of its reference is None.

        Raises:
          BrokenEnvironmentError: when the gym makes none in time, or one with too long a prompt.
        """
        place, most = f"{self.name} difficulty {difficulty} seed {seed}", self._most_characters
        try:
            made = self._gym.call("sample", self._own_name, difficulty, seed, most_characters=most)
        except ServerError as error:
            raise BrokenEnvironmentError(f"{place}: {error}") from error
        if not made["made"]:
            raise BrokenEnvironmentError(f"{place}: the gym made no problem")
        if "characters" in made:
            raise BrokenEnvironmentError(f"{place}: a prompt of {made['characters']:,} characters")
        reference = {"answer": made["answer"], "digest": _digest(made["prompt"])}
        prompt = f"{made['prompt'].rstrip()}\n\n{ANSWER_INSTRUCTION}"
        return Problem(self.name, difficulty, seed, prompt, reference)

    def score(self, problem: Problem, answer: str) -> Score:
        """1 for the content of the last pair of answer tags being right, else 0."""
        content = last_tagged(answer)
        if content is None:
            return Score(0.0, "no answer tags")
        asked = {"answer": content, "digest": problem.reference["digest"]}
        try:
            found = self._gym.call(
                "score", self._own_name, problem.difficulty, problem.seed, **asked
            )
        except CallError as error:
            return Score(0.0, f"the verifier refused the answer: {error}")
        except ServerError as error:
            raise BrokenEnvironmentError(f"{self.name}: {error}") from error
        if not (found["made"] and found["same"]):
            fault = "gives another problem" if found["made"] else "failed"
            raise BrokenEnvironmentError(
                f"{self.name} difficulty {problem.difficulty} seed {problem.seed}: "
                f"making it again {fault}"
            )
        return Score(float(found["right"]), f"graded {found['graded']:g}")

    @property
    def _most_characters(self) -> int:
        return self._gym.most_prompt_characters


def _digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()
