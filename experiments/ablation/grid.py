"""What a comparison is: arms that change a base run, the seeds, and what is held equal."""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from zaya_jax.config import ConfigError
from zaya_jax.training.resolved import from_plain, to_plain
from zaya_jax.training.settings import RunConfig


class Match(enum.StrEnum):
    """What an arm's model is made to have as much of as the baseline's."""

    NONE = "none"  # every arm as it is declared
    PARAMETERS = "parameters"  # all stored numbers
    FLOPS = "flops"  # forward FLOPs per token


@dataclasses.dataclass(frozen=True)
class Arm:
    """One variant."""

    name: str  # also its folder
    changes: Mapping[str, Any]  # "section.field" -> value, over the grid's base run


@dataclasses.dataclass(frozen=True)
class Grid:
    """A comparison of arms.

    Raises:
      ConfigError: on construction, for names that occur twice or a baseline that is no arm.
    """

    question: str  # one sentence
    baseline: str  # arm that sizes are matched to and losses are compared with
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = (0, 1, 2)  # of parameters and of the order of the data
    match: Match = Match.NONE
    adjust: str = "expert_intermediate_size"  # field of the model that matching moves
    learning_rates: tuple[float, ...] = ()  # peaks tried with the first seed; () = the base's
    switch_step: int | None = None  # step after which the data come from elsewhere
    balance: float = 0.99  # mean normalised load entropy that counts as balanced

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names) or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"arms {names}, seeds {self.seeds}: each must be there once")
        if self.baseline not in names or not self.seeds:
            raise ConfigError(f"baseline={self.baseline!r} must be one of {names}, with a seed")
        if not 0 < self.balance < 1:
            raise ConfigError(f"balance={self.balance!r}: a load entropy lies between 0 and 1")

    def select(self, names: Sequence[str]) -> Grid:
        """The same comparison of some of its arms; the baseline always stays.

        Raises:
          ConfigError: for a name that no arm has.
        """
        known = [arm.name for arm in self.arms]
        for name in names:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                raise ConfigError(f"no arm {name!r}; the arms are {', '.join(known)}{hint}")
        kept = tuple(arm for arm in self.arms if arm.name in (*names, self.baseline))
        return dataclasses.replace(self, arms=kept)


def changed(base: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The run with some fields changed, validated.

    Raises:
      ConfigError: for a field that does not exist or a value that breaks a rule.
    """
    fields = to_plain(base)
    for name, value in changes.items():
        section, _, field = name.rpartition(".")
        if section not in fields or field not in fields[section]:
            raise ConfigError(f"an arm changes {name!r}, which is no section.field of a run")
        fields[section][field] = value.value if isinstance(value, enum.Enum) else value
    return from_plain(fields)
