"""A stage of RL with an environment of one's own, to copy: the smallest of some digits.

    python -m experiments.rl --config experiments/configs/own_environment.py --workdir DIR

Model, optimiser and sizes are those of the small stage; what is learnt is all of this file.
"""

from __future__ import annotations

import dataclasses
import random

from experiments.configs import rl_small
from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.setup import ColdStart, RLSetup

get_config = rl_small.get_config
STEPS = 150  # of imitation, until the policy is right now and then


class Smallest:
    """Answer with the smallest of 3 to 6 digits."""

    name = "smallest"
    hardest = 3  # difficulties 0 to 3

    def __init__(self, *, held_out: bool = False) -> None:
        """Made twice: a fifth of all digits is held out, and only measured on."""
        self._held_out = held_out

    def sample(self, difficulty: int, seed: int) -> Problem:
        """The same difficulty and seed give the same problem."""
        draw, digits = random.Random(seed), ""
        while not digits or (int(digits) % 5 == 0) != self._held_out:
            digits = "".join(draw.sample("0123456789", 3 + difficulty))
        return Problem(self.name, difficulty, seed, f"smallest {digits}=", {"digits": digits})

    def score(self, problem: Problem, answer: str) -> Score:
        """Between 0 and 1, with a reason for whoever reads the rollouts."""
        right = min(problem.reference["digits"])
        return Score(float(answer.strip() == right), f"expected {right}")

    def demonstration(self, problem: Problem, *, right: bool) -> str:
        """What a teacher writes: needed by a cold start only, which a trained model needs not."""
        digits = problem.reference["digits"]
        return min(digits) if right else digits[0]


def get_rl(name: str = "") -> RLSetup:
    """The small stage with this environment alone."""
    return dataclasses.replace(
        rl_small.get_rl(name),
        environments=lambda: (Smallest(),),
        held_out=lambda: (Smallest(held_out=True),),
        cold_start=ColdStart(
            steps=STEPS, batch=64, learning_rate=4e-3, right_share=0.3, environments=(Smallest(),)
        ),
    )
