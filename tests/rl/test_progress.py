"""The terminal of an RL run: a table that is drawn anew, plain lines in a pipe."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from zaya_jax.rl.progress import LiveTable, PlainLines, rl_terminal_writer, source_table


def train(step: int = 3, **changes: Any) -> dict[str, Any]:
    figures = {"reward": 0.5, "entropy": 0.25, "kl_k3": 1e-5, "blocked": 0.125}
    groups = {"groups_kept": 7, "groups_dropped": 3, "sample_seconds": 1.5, "train_seconds": 0.25}
    sources = {"reward/sort": 0.75, "difficulty/sort": 2, "reward/[red]": 0.25}
    return {"kind": "train", "step": step, "time": 0.0, **figures, **groups, **sources, **changes}


def test_a_pipe_gets_a_line_for_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    writer = rl_terminal_writer(10, 0)
    assert isinstance(writer, PlainLines)
    writer.write(train())
    writer.write({"kind": "validation", "step": 3, "source": "sort", "solve_rate": 0.5})
    writer.close()
    assert capsys.readouterr().out == (
        "step 3/10  reward 0.500  kept 7 of 10 groups  entropy 0.250  kl 1.0e-05  blocked 0.125"
        "  1.5 + 0.2 s\n"
    )


def test_a_terminal_gets_a_table_of_the_last_step() -> None:
    text = io.StringIO()
    table = LiveTable(10, 2, Console(file=text, force_terminal=True, width=90, color_system=None))
    table.write({"kind": "validation", "step": 0, "source": "sort", "solve_rate": 0.125})
    table.write(train(workers_idle_share=0.5))
    table.write({"kind": "event", "step": 3, "name": "checkpoint"})
    table.close()
    drawn = text.getvalue().split("problems")[-1]
    assert " 3/10" in text.getvalue()
    assert next(word for word in drawn.splitlines() if "sort" in word).split()[1::2] == [
        "sort",
        "0.750",
        "2",
        "12.5%",
    ]
    assert "[red]" in drawn
    assert "kl 1.0e-05" in drawn
    assert "workers idle 50%" in drawn
    assert "flips" not in drawn  # not measured in this step


def test_the_lowest_rewards_are_shown_first_and_the_rest_is_counted() -> None:
    rewards = {f"reward/{i}": 1 - i / 20 for i in range(15)}
    table = source_table({"reward": 0.5, **rewards}, {"unseen": 0.5})
    names = list(table.columns[0].cells)
    assert names[:2] == ["14", "13"]
    assert names[-2:] == ["and 4 more", "all"]


def test_what_all_sources_solve_together_stands_in_the_last_row_only() -> None:
    table = source_table(train(), {"sort": 0.25, "all": 0.75})
    names, solved = (list(table.columns[i].cells) for i in (0, 3))
    assert names.count("all") == 1
    assert (names[-1], solved[-1]) == ("all", "75.0%")
