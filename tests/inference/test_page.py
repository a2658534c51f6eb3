"""The chat page: what it may load, and how it behaves in a real browser."""

from __future__ import annotations

import asyncio
import re
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the serve extra")

from tests.browser import chromium, complaints
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.server.app import Server, ServerSettings
from zaya_jax.inference.server.page import PAGE

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
KEY = "secret"


def get(application: Any, path: str) -> tuple[int, dict[str, str], str]:
    """One request without a network."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    asyncio.run(application(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], headers, body.decode()


def test_the_page_is_served_and_may_load_nothing() -> None:
    service: Any = types.SimpleNamespace(failure=None)
    server = Server(service, load_tokenizer("bytes"), ServerSettings("tiny", KEY))
    status, headers, text = get(server.application(), "/")
    assert status == 200
    assert text == PAGE.read_text(encoding="utf-8")
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert get(server.application(), "/v1/models")[0] == 401


def test_the_page_names_no_other_place() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"https?://|//[\w.-]+\.\w|@import|url\(", text) == []
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert "innerHTML" not in text  # texts are set as text, never parsed
    assert re.findall(r" on\w+=", text) == []


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Server]]:
    from tests.inference.test_server import serving

    with serving(ServerSettings("tiny", KEY)) as running:
        yield running


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as own:
        yield own


class Page:
    """The page as a person uses it."""

    def __init__(self, driver: Any, url: str, key: str | None = KEY) -> None:
        self.driver = driver
        driver.get(url)
        self.id("settings").click()
        if key:
            self.id("key").send_keys(key)
        self.fill(seed=3, max_tokens=24)

    def id(self, name: str) -> Any:
        return self.driver.find_element("id", name)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def fill(self, **values: Any) -> None:
        for name, value in values.items():
            field = self.id(name)
            field.clear()
            field.send_keys(str(value))

    def say(self, text: str) -> None:
        self.id("input").send_keys(text)
        self.id("send").click()

    def until(self, state: str, turn: int = 0) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        def reached(_: Any) -> Any:
            turns = self.all(".turn.assistant")
            found = turns[turn].get_attribute("data-state") if len(turns) > turn else None
            return turns[turn] if found == state else None

        return WebDriverWait(self.driver, 120).until(reached)


@pytest.mark.slow
def test_an_answer_streams_with_its_thinking_folded(server: Any, driver: Any) -> None:
    page = Page(driver, server[0])
    page.say(HOSTILE)
    turn = page.until("finished")
    assert driver.title == "zaya_jax"
    assert page.id("model").text == "tiny"
    assert page.all(".turn.user .text")[0].text == HOSTILE
    folded = turn.find_element("css selector", "details.thoughts")
    assert folded.get_attribute("open") is None
    folded.find_element("css selector", "summary").click()
    assert folded.find_element("css selector", ".text").text
    note = turn.find_element("css selector", ".note").text
    assert "24 tokens" in note
    assert "cut" in note
    page.say("and?")
    page.until("finished", 1)
    page.id("clear").click()
    assert page.all(".turn") == []
    # The key is asked for before it is typed in; that is the only complaint.
    assert [own for own in complaints(driver) if "401" not in own] == []


@pytest.mark.slow
def test_without_thinking_everything_is_answer(server: Any, driver: Any) -> None:
    page = Page(driver, server[0])
    page.id("thinking").click()
    page.say("Hi")
    turn = page.until("finished")
    assert not turn.find_element("css selector", "details.thoughts").is_displayed()
    assert turn.find_element("css selector", ".answer").text


@pytest.mark.slow
def test_stop_hangs_up_and_frees_the_slot(server: Any, driver: Any) -> None:
    page = Page(driver, server[0])
    page.fill(max_tokens=400)
    page.say("Hi")
    while not page.id("stop").is_enabled():
        time.sleep(0.01)
    page.id("stop").click()
    page.until("stopped")
    for _ in range(500):
        if server[1].open_choices == 0 and server[1].service.engine.idle:
            break
        time.sleep(0.02)
    assert server[1].open_choices == 0
    assert server[1].service.engine.idle
    page.say("Again")
    page.until("finished", 1)


@pytest.mark.slow
def test_a_wrong_key_and_a_wrong_number_are_told(server: Any, driver: Any) -> None:
    page = Page(driver, server[0], key="guess")
    page.say("Hi")
    assert "API key" in page.until("failed").text
    page = Page(driver, server[0])
    page.fill(max_tokens=100_000)
    page.say("Hi")
    assert "exceed" in page.until("failed").text


@pytest.mark.slow
def test_markovian_rsa_shows_rounds_cards_and_the_vote(server: Any, driver: Any) -> None:
    from selenium.webdriver.support.ui import Select

    page = Page(driver, server[0])
    Select(page.id("mode")).select_by_value("rsa")
    assert not page.id("temperature").is_displayed()
    page.fill(rounds=1, population=3, subset=2, thinking_budget=16, tail=8, answer_budget=8)
    page.say("What is six times seven?")
    turn = page.until("finished")
    assert [own.text for own in turn.find_elements("css selector", ".round h2")] == [
        "Round 0",
        "Round 1",
    ]
    cards = turn.find_elements("css selector", ".card")
    assert len(cards) == 6
    assert sum("reads 0." in card.text for card in cards) == 3
    assert "elected answer" in turn.text
    assert server[1].open_choices == 0
    page.fill(subset=9)
    page.say("Again")
    assert "subset" in page.until("failed", 1).text
