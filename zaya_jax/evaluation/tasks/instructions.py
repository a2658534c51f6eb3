"""Instructions that a program can check (as in IFEval): right when all of them are followed.

    {"prompt": "Write about bees. Use no commas.",
     "constraints": [{"name": "no_commas", "value": ""}]}

Names and the type of their values are those of `zaya_jax.rl.environments.instructions`; the prompt
says in its own words what they ask for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zaya_jax.evaluation.items import FieldError, Item, listed, read_fields, record, text
from zaya_jax.rl.environments.instructions import CONSTRAINTS, InstructionEnvironment
from zaya_jax.rl.environments.protocol import Problem, Score


def _name(name: str, value: Any) -> str:
    if value not in CONSTRAINTS:
        raise FieldError(f"{name}: {value!r} is none of {', '.join(CONSTRAINTS)}")
    return str(value)


def _value(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FieldError(f"{name}: {value!r} must be text or an integer")
    return value


def _constraints(name: str, value: Any) -> dict[str, Any]:
    fields = {"name": _name, "value": _value}
    asked: dict[str, Any] = {}
    for i, one in enumerate(listed(name, value, lambda n, v: record(n, v, fields))):
        known = CONSTRAINTS[one["name"]].values[0]
        if type(one["value"]) is not type(known):
            kind = "text" if isinstance(known, str) else "an integer"
            raise FieldError(f"{name}[{i}].value: {one['value']!r} must be {kind}")
        if one["name"] in asked:
            raise FieldError(f"{name}[{i}].name: {one['name']!r} comes twice")
        asked[one["name"]] = one["value"]
    return asked


FIELDS = {"prompt": text, "constraints": _constraints}


class Instructions:
    """See the module."""

    def __init__(self, path: Path) -> None:
        """Reads the file."""
        self._environment = InstructionEnvironment()
        self.items = [
            Item(own, row["prompt"], row["constraints"])
            for _, own, row in read_fields(path, FIELDS)
        ]

    def grade(self, item: Item, answer: str) -> Score:
        """1 when every constraint holds for the whole answer."""
        reference = {"constraints": item.reference}
        return self._environment.score(Problem(item.id, 0, 0, item.prompt, reference), answer)

    def vote(self, answer: str) -> str | None:
        """Texts are not voted on."""
        return None

    def close(self) -> None:
        """Nothing runs."""
