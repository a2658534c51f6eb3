"""Following instructions that a program can check: all of them or nothing.

Difficulty d asks for d + 1 constraints on one short text. Every constraint is a plain function of
the text; none contradicts another of the same problem.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from zaya_jax.rl.environments.protocol import Problem, Score


class Constraint(NamedTuple):
    """One kind of instruction.

    Attributes:
      area: what it governs; constraints of one area are not asked for together.
      values: parameters to choose from.
      instruction: sentence with `{value}`.
      holds: whether a text follows it.
    """

    area: str
    values: tuple
    instruction: str
    holds: Callable[[str, Any], bool]


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text)  # noqa: RUF001


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def _contains(text: str, word: object) -> bool:
    return str(word).lower() in (w.lower() for w in _words(text))


CONSTRAINTS: dict[str, Constraint] = {
    "at_least_words": Constraint(
        "length", (30, 50, 80), "Use at least {value} words.", lambda t, v: len(_words(t)) >= v
    ),
    "at_most_words": Constraint(
        "length", (60, 90, 120), "Use at most {value} words.", lambda t, v: 0 < len(_words(t)) <= v
    ),
    "paragraphs": Constraint(
        "layout",
        (2, 3, 4),
        "Write exactly {value} paragraphs, separated by blank lines.",
        lambda t, v: len(_paragraphs(t)) == v,
    ),
    "bullets": Constraint(
        "layout",
        (2, 3, 5),
        "Write a list of exactly {value} lines that each start with '- ', and nothing else.",
        lambda t, v: (
            len(ls := [x for x in t.splitlines() if x.strip()]) == v
            and all(x.startswith("- ") for x in ls)
        ),
    ),
    "includes": Constraint(
        "included", ("river", "seven", "copper"), "Use the word '{value}'.", _contains
    ),
    "excludes": Constraint(
        "excluded",
        ("the", "and", "is"),
        "Do not use the word '{value}'.",
        lambda t, v: bool(_words(t)) and not _contains(t, v),
    ),
    "lower_case": Constraint(
        "case",
        ("",),
        "Use no capital letters.",
        lambda t, v: bool(_words(t)) and t == t.lower(),
    ),
    "upper_case": Constraint(
        "case", ("",), "Use capital letters only.", lambda t, v: bool(_words(t)) and t == t.upper()
    ),
    "no_commas": Constraint(
        "commas", ("",), "Use no commas.", lambda t, v: bool(_words(t)) and "," not in t
    ),
    "ends_with": Constraint(
        "end",
        ("over.", "DONE", "?"),
        "End with exactly '{value}'.",
        lambda t, v: t.rstrip().endswith(str(v)),
    ),
}
TOPICS = ("the sea", "a train", "bread", "a lighthouse", "winter", "an old map", "bees", "clocks")
# 'DONE' and 'over.' at the end fit only one case each.
_CLASHES = {("lower_case", "DONE"), ("upper_case", "over.")}


class InstructionEnvironment:
    """Short texts under constraints."""

    name = "instructions"

    @property
    def hardest(self) -> int:
        """One constraint of every area."""
        return len({constraint.area for constraint in CONSTRAINTS.values()}) - 1

    def sample(self, difficulty: int, seed: int) -> Problem:
        """A topic and `difficulty + 1` constraints, drawn by the seed."""
        draw = random.Random(seed)
        topic, chosen = draw.choice(TOPICS), dict[str, object]()
        wanted = min(difficulty, self.hardest) + 1
        for name in draw.sample(sorted(CONSTRAINTS), len(CONSTRAINTS)):
            areas = {CONSTRAINTS[other].area for other in chosen}
            if len(chosen) == wanted or CONSTRAINTS[name].area in areas:
                continue
            values = [v for v in CONSTRAINTS[name].values if not _clashes(name, v, chosen)]
            if values:
                chosen[name] = draw.choice(values)
        lines = [CONSTRAINTS[n].instruction.format(value=v) for n, v in chosen.items()]
        prompt = "\n".join([f"Write a short text about {topic}.", *lines])
        return Problem(self.name, difficulty, seed, prompt, {"constraints": chosen})

    def score(self, problem: Problem, answer: str) -> Score:
        """1 when every constraint holds for the whole answer."""
        asked = problem.reference["constraints"]
        broken = [n for n, v in asked.items() if not CONSTRAINTS[n].holds(answer.strip(), v)]
        return Score(float(not broken), f"broken: {json.dumps(broken)}" if broken else "all hold")


def _clashes(name: str, value: object, chosen: dict[str, object]) -> bool:
    pairs = {(other, value) for other in chosen} | {(name, v) for v in chosen.values()}
    return bool(pairs & _CLASHES)
