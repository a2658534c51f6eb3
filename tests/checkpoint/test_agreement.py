"""Processes with disks of their own agree on a step that all of them can go on from."""

from __future__ import annotations

import pytest

from zaya_jax.checkpoint.agreement import (
    View,
    Views,
    empty_disks,
    first_damage,
    reason_against,
    seen_steps,
)

FIRST, SECOND = View("first"), View("second")


def _newest_common(views: list[Views]) -> int | None:
    return next((step for step in seen_steps(views) if not reason_against(step, views)), None)


@pytest.mark.parametrize(
    ("views", "newest"),
    [
        ([{}], None),
        ([{12: FIRST, 14: FIRST}], 14),
        ([{12: FIRST, 14: FIRST}, {12: FIRST, 14: FIRST}], 14),
        ([{12: FIRST, 14: FIRST}, {10: FIRST, 12: FIRST}], 12),  # one was killed while it wrote 14
        ([{14: FIRST}, {12: FIRST}], None),
        ([{12: FIRST, 14: SECOND}, {12: FIRST, 14: FIRST}], 12),  # a time before, and this one
        ([{12: FIRST, 14: FIRST}, {12: FIRST, 14: View("first", "lacks something")}], 12),
        ([{12: FIRST}, {}, {12: FIRST}], None),
    ],
)
def test_the_newest_step_that_all_hold_is_taken(views: list[Views], newest: int | None):
    assert _newest_common(views) == newest


def test_the_reason_names_the_processes():
    views: list[Views] = [{12: FIRST}, {}, {}]
    assert reason_against(12, views) == "is not on the disk of processes 1, 2"
    views = [{12: FIRST}, {12: View("first", "lacks parts of w")}]
    assert reason_against(12, views) == "lacks parts of w on the disk of process 1"
    assert reason_against(12, [{12: View("", "was not completely written")}]) == (
        "was not completely written"
    )


def test_a_disk_without_any_step_is_told_from_processes_that_are_at_other_steps():
    assert empty_disks([{12: FIRST}, {}]) == "process 1"
    assert empty_disks([{12: FIRST}, {10: FIRST}]) == ""
    assert empty_disks([{}, {}]) == ""


def test_damage_on_any_disk_counts():
    assert first_damage(["", ""]) == ""
    assert (
        first_damage(["", "x has 3 bytes"]) == "is damaged on the disk of process 1: x has 3 bytes"
    )
    assert first_damage(["x has 3 bytes"]) == "is damaged: x has 3 bytes"
