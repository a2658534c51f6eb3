"""How much Markovian RSA spends on a problem."""

from __future__ import annotations

import dataclasses

from zaya_jax.config import ConfigError


@dataclasses.dataclass(frozen=True)
class RSASettings:
    """One way to run Markovian RSA; the symbols are those of arXiv 2605.05365.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    rounds: int = 2  # T: rounds of aggregation after the first one; 0 is parallel sampling
    population: int = 16  # N: candidates in every round
    subset: int = 4  # C: tails in a prompt; with 1, each candidate continues its own
    thinking_budget: int = 16_384  # beta: reasoning tokens of a rollout
    tail: int = 4_096  # tau: tokens passed on; as long as the budget: everything
    answer_budget: int = 40_960  # tokens of each final answer
    pass_answers: bool = False  # pass on the answer, not the tail, where a candidate finished
    seed: int = 0  # of draws and rollouts
    attempts: int = 2  # tries for a candidate before it counts as lost
    timeout: float = 3_600.0  # seconds for one try
    concurrency: int = 64  # rollouts at the same time

    def __post_init__(self) -> None:
        for name in ("population", "subset", "thinking_budget", "tail", "attempts", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r}: must be at least 1")
        if self.rounds < 0:
            raise ConfigError(f"rounds={self.rounds!r}: must be 0 or more")
        if self.answer_budget < 1 or self.timeout <= 0:
            raise ConfigError(
                f"answer_budget={self.answer_budget!r}, timeout={self.timeout!r}: must be positive"
            )
        if self.tail > self.thinking_budget:
            raise ConfigError(
                f"tail={self.tail} is longer than thinking_budget={self.thinking_budget}; "
                "a tail is at most all of the reasoning"
            )
        if self.rounds and self.subset > self.population:
            raise ConfigError(
                f"subset={self.subset} tails cannot be drawn from population={self.population}"
            )


# arXiv 2605.05365: light and default settings, the headline maths scores, the largest APEX run.
RSA_PRESETS = {
    "light": RSASettings(population=8, thinking_budget=8_192),
    "default": RSASettings(),
    "headline": RSASettings(thinking_budget=40_960),
    "apex_xhigh": RSASettings(rounds=8, population=32, thinking_budget=32_768),
}


def rsa_preset(name: str) -> RSASettings:
    """The named settings.

    Raises:
      ConfigError: when there are none of that name.
    """
    if name not in RSA_PRESETS:
        raise ConfigError(f"preset {name!r} is unknown; the presets are: {', '.join(RSA_PRESETS)}")
    return RSA_PRESETS[name]
