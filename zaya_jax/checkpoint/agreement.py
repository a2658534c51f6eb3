"""Which of the checkpoints on their own disks all processes can go on from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class View:
    """A step as one process finds it on its disk, before its files are read."""

    save: str  # names the save that wrote it: those of a step must be from the same one
    problem: str = ""  # why this process cannot use it; "" = none is known


# Of one process: what it finds, by step.
Views = Mapping[int, View]


def seen_steps(views: Sequence[Views]) -> list[int]:
    """Steps that any process finds, the newest first."""
    return sorted(set().union(*views), reverse=True)


def reason_against(step: int, views: Sequence[Views]) -> str:
    """Why the processes cannot all go on from a step; "" = as far as is known they can."""
    lacking = [index for index, view in enumerate(views) if step not in view]
    if lacking:
        return f"is not on the disk of {_named(lacking)}"
    problems = {index: view[step].problem for index, view in enumerate(views) if view[step].problem}
    if problems:
        first = min(problems)
        return problems[first] + _place([first], len(views))
    if len({view[step].save for view in views}) > 1:
        return "was saved at different times by the processes"
    return ""


def empty_disks(views: Sequence[Views]) -> str:
    """Names the processes that find no step while others do; "" = there are none such."""
    empty = [index for index, view in enumerate(views) if not view]
    return _named(empty) if 0 < len(empty) < len(views) else ""


def first_damage(damages: Sequence[str]) -> str:
    """The first of what the processes found when they read their files; "" = nothing."""
    for index, damage in enumerate(damages):
        if damage:
            return f"is damaged{_place([index], len(damages))}: {damage}"
    return ""


def _named(processes: list[int]) -> str:
    listed = ", ".join(map(str, processes))
    return f"process {listed}" if len(processes) == 1 else f"processes {listed}"


def _place(processes: list[int], count: int) -> str:
    return f" on the disk of {_named(processes)}" if count > 1 else ""
