"""The page of a Markovian RSA run: who read whom, who won, and no text that becomes markup."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.browser import chromium, complaints
from tests.evaluation.scripted_model import BoxingEngine
from zaya_jax.config import ConfigError
from zaya_jax.data.aggregation_prompt import Piece
from zaya_jax.evaluation.rsa_view import answer_key, main, rsa_page, tokenizer_text
from zaya_jax.inference.markovian_rsa import markovian_rsa
from zaya_jax.inference.rollouts import Budget, Rollout
from zaya_jax.inference.rsa_settings import RSASettings
from zaya_jax.inference.rsa_trace import read_trace

HOSTILE = "</script></pre><script>document.title='owned'</script><img src=x onerror='hi()'>\" '"
SETTINGS = RSASettings(
    rounds=2, population=4, subset=2, thinking_budget=20, tail=6, answer_budget=9, attempts=1
)


class HostileEngine(BoxingEngine):
    """Thinks and answers markup."""

    async def rollout(self, prompt: tuple[Piece, ...], budget: Budget, seed: int) -> Rollout:
        made = await super().rollout(prompt, budget, seed)
        reasoning = tuple(HOSTILE for _ in made.reasoning)
        answer = f"{HOSTILE} {made.answer}" if made.answer else ""
        return dataclasses.replace(made, reasoning=reasoning, answer=answer)


def traced(folder: Path, engine: BoxingEngine, problem: str = "six times seven") -> Path:
    path = folder / "trace.jsonl"
    asyncio.run(markovian_rsa(engine, problem, SETTINGS, path))
    return path


class _Page(HTMLParser):
    """Tags, and the cards with what they say they read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: dict[str, list[str]] = {}
        self.votes: list[list[str]] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        own = dict(attrs)
        self.links += [str(v) for n, v in attrs if n in ("src", "href") or n.startswith("on")]
        if tag == "article":
            read = str(own["data-sources"]).split()
            if own.get("id"):
                self.sources[str(own["id"])] = read
            else:
                self.votes.append(read)


def test_cards_name_what_they_read_and_votes_who_gave_them(tmp_path: Path) -> None:
    trace = read_trace(traced(tmp_path, BoxingEngine(lengths=(30, 4), failures=frozenset({2}))))
    text = rsa_page(trace)
    page = _Page(text)
    assert len(page.sources) == 12
    for population in trace.rounds:
        for own in population:
            expected = [f"{own.round - 1}-{other}" for other in own.drawn]
            assert page.sources[f"c{own.round}-{own.index}"] == expected
    assert "lost: call 2 was told to fail" in text
    answers = [own.rollout.answer for own in trace.rounds[-1] if own.rollout]
    by_answer = [
        [f"2-{i}" for i, a in enumerate(answers) if a == wanted] for wanted in set(answers)
    ]
    assert sorted(page.votes) == sorted(by_answer)
    assert [len(own) for own in page.votes] == sorted((len(v) for v in page.votes), reverse=True)


def test_no_text_of_a_trace_becomes_markup(tmp_path: Path) -> None:
    plain = _Page(rsa_page(read_trace(traced(tmp_path / "plain", BoxingEngine()))))
    hostile = rsa_page(read_trace(traced(tmp_path / "hostile", HostileEngine(), HOSTILE)))
    page = _Page(hostile)
    assert page.tags == plain.tags
    assert page.links == []
    assert "img" not in page.tags
    assert "://" not in hostile.replace("http://www.w3.org/2000/svg", "")


def test_the_command_writes_beside_the_trace_and_needs_a_tokenizer_for_ids(tmp_path: Path) -> None:
    path = traced(tmp_path, BoxingEngine(lengths=(3,)))
    assert main([str(path)]) == 0
    assert "1000" in path.with_suffix(".html").read_text()
    output = tmp_path / "other.html"
    assert main([str(path), "--output", str(output)]) == 0
    assert output.exists()
    text_of = tokenizer_text("bytes")
    assert text_of(("a", "b")) == "ab"


def test_an_unfinished_run_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    path = traced(tmp_path, BoxingEngine())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:7]) + '{"round": 1, "ind')
    text = rsa_page(read_trace(path))
    assert "not finished" in text
    assert len(_Page(text).sources) == 6


@pytest.mark.parametrize("content", ["", "nonsense\n", '{"problem": "x"}\n', "{}\n", "[]\n"])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"trace\.jsonl"):
        read_trace(path)
    with pytest.raises(ConfigError, match="does not exist"):
        read_trace(tmp_path / "none.jsonl")


def test_answers_are_counted_by_what_they_come_to() -> None:
    keys = [answer_key(text) for text in ("so \\boxed{7}", "<answer> 7 </answer>", " 7\n", "")]
    assert keys == ["7", "7", "7", ""]


@pytest.mark.slow
def test_a_browser_draws_the_lines_and_runs_nothing_foreign(tmp_path: Path) -> None:
    path = traced(tmp_path, HostileEngine(), HOSTILE)
    main([str(path)])
    with chromium() as driver:
        driver.get(path.with_suffix(".html").as_uri())
        assert driver.title == "Markovian RSA - zaya_jax"
        assert complaints(driver) == []
        find = driver.find_elements
        assert len(find("css selector", ".round")) == 4
        assert len(find("css selector", "article[id]")) == 12
        wires = find("css selector", ".wires path")
        assert len(wires) == 2 * 4 * 2 + 4  # two rounds that read two tails each, and the votes
        assert all(wire.get_attribute("d").startswith("M") for wire in wires)
        from selenium.webdriver import ActionChains

        ActionChains(driver).move_to_element(find("css selector", "#c1-0 h3")[0]).perform()
        lit = find("css selector", ".wires path.on")
        trace = json.loads(json.dumps([own.drawn for own in read_trace(path).rounds[2]]))
        assert len(lit) == 2 + sum(0 in drawn for drawn in trace)
        driver.save_screenshot(str(tmp_path / "view.png"))
