"""Rows of the table from known answers, and what the files say."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from zaya_jax.evaluation.records import Graded, Record
from zaya_jax.evaluation.summary import summarise
from zaya_jax.evaluation.table import table_text, write_results

HOSTILE = "</script><img src=x onerror=alert(1)>|\"'&"


def record(item: str, number: int, *answers: tuple[str | None, bool], tokens: int = 10) -> Record:
    graded = tuple(
        Graded(str(vote), "", tokens, vote is None, float(right), "", vote)
        for vote, right in answers
    )
    return Record(item, number, graded, tokens * len(graded), 3, tokens + 3, 0.5)


# Problem a: right, right, wrong; problem b: wrong, no answer, right.
RECORDS = [
    record("a", 0, ("1", True), tokens=10),
    record("a", 1, ("1", True), tokens=20),
    record("a", 2, ("2", False), tokens=30),
    record("b", 0, ("5", False), tokens=40),
    record("b", 1, (None, False), tokens=50),
    record("b", 2, ("7", True), tokens=60),
]


def test_a_row_is_what_hand_counting_gives() -> None:
    row = summarise("task", "final_answer", "none", RECORDS)
    assert row.score == row.avg == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert (row.problems, row.tries, row.answers) == (2, 3, 3)
    assert row.pass_at == pytest.approx({1: 1 / 2, 2: (1 + 2 / 3) / 2, 3: 1.0})
    # a elects 1; b ties 5 and 7.
    assert row.majority_at[3] == pytest.approx((1 + 0.5) / 2)
    assert row.tokens["mean"] == 35
    assert row.tokens["max"] == 60
    assert row.cut == pytest.approx(1 / 6)
    assert row.new_tokens_per_problem == 105
    assert row.peak_context == 63
    assert row.low == pytest.approx(1 / 3)
    assert row.high == pytest.approx(2 / 3)


def test_the_order_of_records_does_not_matter() -> None:
    assert summarise("t", "k", "none", RECORDS) == summarise("t", "k", "none", RECORDS[::-1])


def test_a_vote_is_scored_by_who_wins_it() -> None:
    votes = [
        record("a", 0, ("1", True), ("1", True), ("2", False)),
        record("a", 1, ("2", False), ("2", False), ("1", True)),
        record("b", 0, ("3", True), ("4", False), (None, False)),
        record("b", 1, (None, False), (None, False), (None, False)),
    ]
    row = summarise("task", "final_answer", "majority", votes)
    assert [problem.score for problem in row.by_problem] == [0.5, 0.25]
    assert row.avg == pytest.approx((1 / 2 + 1 / 6) / 2)


def test_tasks_without_votes_show_none() -> None:
    row = summarise("task", "code", "none", [record("a", 0, (None, True))])
    assert row.majority_at == {}
    assert " - " in table_text([row])


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for n, v in attrs if n in ("src", "href", "srcset", "data")]


def test_the_files_agree_and_hostile_names_stay_text(tmp_path: Path) -> None:
    row = summarise(
        HOSTILE, "final_answer", "none", [record(HOSTILE, n, ("1", True)) for n in (0, 1)]
    )
    write_results(tmp_path, [row], {"model": HOSTILE})
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["tasks"][0]["score"] == 1.0
    assert content["settings"] == {"model": HOSTILE}
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert [line.replace("\\|", "").count("|") for line in lines] == [13] * 3
    page = (tmp_path / "report.html").read_text()
    parsed = _Tags(page)
    assert "img" not in parsed.tags
    assert parsed.links == []
    assert parsed.tags.count("script") == 2  # the page's own, and a plot's data
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.html",
        "results.json",
        "results.md",
    ]
