"""A reward model over HTTP: what is asked, what counts as a score, and every way to fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from zaya_jax.rl.environments.protocol import BrokenEnvironmentError
from zaya_jax.rl.environments.reward_server import INSTRUCTION, RewardServer, parsed_score
from zaya_jax.rl.errors import RLError

pytest.importorskip("openai")


class StandIn(ThreadingHTTPServer):
    """Answers as told; keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.behaviour = "7"
        self.failures = 0  # so many answers of status 500 come first
        self.ended = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: Any) -> None:
        return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append({"path": self.path, **json.loads(body)})
        behaviour = self.server.behaviour
        if self.server.failures > 0:
            self.server.failures -= 1
            self.reply(500, b"{}")
        elif behaviour == "silent":
            self.server.ended.wait(30)
        elif behaviour == "dripping":
            self.send_response(200)
            self.end_headers()
            for _ in range(600):
                if self.server.ended.wait(0.05):
                    return
                try:
                    self.wfile.write(b" ")
                except OSError:
                    return
        elif behaviour.startswith("status "):
            self.reply(int(behaviour.split()[1]), b'{"error": {"message": "no"}}')
        elif behaviour.startswith("raw "):
            self.reply(200, behaviour[4:].encode())
        else:
            message = {"role": "assistant", "content": behaviour}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = {"id": "x", "object": "chat.completion", "created": 0, "model": "judge"}
            self.reply(200, json.dumps({**whole, "choices": [choice]}).encode())

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def model(stand_in: StandIn) -> Iterator[RewardServer]:
    made = RewardServer(stand_in.url, "judge", seconds=60.0)
    yield made
    made.close()


def test_the_request_is_the_documented_one(stand_in: StandIn, model: RewardServer) -> None:
    stand_in.asked.clear()
    stand_in.behaviour = "7"
    assert model.score("Why?", "Because.") == 0.7
    (asked,) = stand_in.asked
    assert asked == {
        "path": "/v1/chat/completions",
        "model": "judge",
        "temperature": 0,
        "max_tokens": 1_024,
        "messages": [
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "Because."},
            {"role": "user", "content": INSTRUCTION},
        ],
    }


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("0", 0.0),
        ("10", 1.0),
        (" 7.5\n", 0.75),
        ("8/10", 0.8),
        ("<think>maybe 3</think>9", 0.9),
        ("11", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("1e1", None),
        ("7 out of 10", None),
        ("I give it a 7", None),
        ("7 8", None),
        ("<think>7", None),
        ("", None),
    ],
)
def test_only_a_number_from_0_to_10_is_a_score(text: str, score: float | None) -> None:
    assert parsed_score(text) == score


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("great answer!", "answered 'great answer!', which is no number"),
        ("nan", "answered 'nan'"),
        ("status 400", "BadRequestError"),
        ("status 401", "AuthenticationError"),
        ("raw not json", "no chat completion"),
        ("raw {}", "no chat completion"),
        ('raw {"choices": []}', "no chat completion"),
        ('raw {"choices": [{"message": {"content": null}}]}', "no chat completion"),
        ("raw 7", "no chat completion"),
    ],
)
def test_garbage_and_refusals_break_the_group(
    stand_in: StandIn, model: RewardServer, behaviour: str, message: str
) -> None:
    stand_in.behaviour = behaviour
    with pytest.raises(BrokenEnvironmentError, match=f"reward model judge at .*{message}"):
        model.score("p", "r")


def test_a_passing_fault_is_tried_again(stand_in: StandIn, model: RewardServer) -> None:
    stand_in.behaviour, stand_in.failures = "5", 1
    assert model.score("p", "r") == 0.5


@pytest.mark.parametrize("behaviour", ["silent", "dripping"])
def test_a_server_that_never_ends_is_given_up(stand_in: StandIn, behaviour: str) -> None:
    stand_in.behaviour = behaviour
    impatient = RewardServer(stand_in.url, "judge", seconds=0.5)
    with pytest.raises(BrokenEnvironmentError, match=r"no answer for 0\.5 s|APITimeoutError"):
        impatient.score("p", "r")
    impatient.close()


def test_nobody_listening_is_an_error_of_the_environment() -> None:
    nobody = RewardServer("http://127.0.0.1:9/v1", "judge", seconds=20.0)
    with pytest.raises(BrokenEnvironmentError, match="APIConnectionError"):
        nobody.score("p", "r")
    nobody.close()


def test_calls_of_several_threads_run_side_by_side(stand_in: StandIn, model: RewardServer) -> None:
    stand_in.behaviour = "4"
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: model.score("p", f"r{i}"), range(8))) == [0.4] * 8


def test_a_limit_that_is_not_positive_is_refused() -> None:
    with pytest.raises(RLError, match="seconds=0: must be positive"):
        RewardServer("http://x/v1", "judge", seconds=0)
