"""An engine behind HTTP: the trainer gets from a stand-in what an engine beside it would give."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.rl.scripted_engine import STOP, ScriptedEngine
from tests.rl.test_pipeline import PIPELINE, pipeline_of
from tests.rl.tiny_policy import MODEL, variables
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.pipeline import PipelineConfig, WorkerPlace
from zaya_jax.rl.sampler import ForwardSampler, Sampled
from zaya_jax.rl.server_engine import ServerEngine, parsed_choice


class StandIn(ThreadingHTTPServer):
    """Speaks as vLLM does; a sampler answers, with the weights of the folder it was last told."""

    daemon_threads = True

    def __init__(self, sampler: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sampler, self.url = sampler, f"http://127.0.0.1:{self.server_address[1]}"
        self.running = threading.Event()
        self.running.set()
        self.calls: list[str] = []
        self.fail_with: tuple[int, bytes] | None = None
        self.one_at_a_time = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: Any) -> None:
        return

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.fail_with or (200, json.dumps(self._answer(body)).encode())
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        server = self.server
        if self.path == "/v1/completions":
            assert (body["temperature"], body["top_p"], body["return_token_ids"]) == (1, 1, True)
            assert body["stop_token_ids"] == [STOP]
            assert server.running.wait(60)
            with server.one_at_a_time:
                [drawn] = server.sampler.sample([body["prompt"]], [body["seed"]])
            return {"choices": [choice_of(drawn)]}
        server.calls.append(self.path)
        if self.path.startswith("/pause"):
            server.running.clear()
        elif self.path == "/resume":
            server.running.set()
        else:
            assert body["method"] == "reload_weights"
            assert not server.running.is_set()
            config, loaded = load_checkpoint(body["kwargs"]["weights_path"])
            assert config.hidden_size == MODEL.hidden_size
            with server.one_at_a_time:
                server.sampler.load_weights(loaded)
        return {}


def choice_of(drawn: Sampled) -> dict[str, Any]:
    file = io.BytesIO()
    last = np.zeros_like(drawn.routes[:1])  # some servers have a row for the last token too
    np.save(file, np.concatenate([drawn.routes, last]).astype(np.int16)[:, :, None])
    return {
        "token_ids": drawn.tokens.tolist(),
        "logprobs": {"token_logprobs": drawn.log_probs.tolist()},
        "finish_reason": "length" if drawn.truncated else "stop",
        "routed_experts": base64.b64encode(file.getvalue()).decode(),
    }


@pytest.fixture
def serve() -> Iterator[Any]:
    servers: list[StandIn] = []

    def start(sampler: Any) -> StandIn:
        server = StandIn(sampler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.running.set()
        server.shutdown()
        server.server_close()


def engine_of(server: StandIn, folder: Path) -> ServerEngine:
    return ServerEngine(server.url, MODEL, folder, stop_token=STOP, most_tokens=8, seconds=60.0)


def drain(engine: ServerEngine) -> dict[int, Sampled]:
    found: dict[int, Sampled] = {}
    while not engine.idle:
        found.update(engine.step())
    return found


def test_a_pipeline_learns_from_a_server_and_pushes_its_weights(serve: Any, tmp_path: Path) -> None:
    server = serve(ScriptedEngine())
    stage, state = pipeline_of(PIPELINE, [engine_of(server, tmp_path)])
    try:
        for _ in range(4):
            state, metrics = stage.step(state)
            assert all(group.check(4) is None for group in stage.last_groups)
            assert metrics["policy_age_max"] <= PIPELINE.most_updates_behind
        pushes = len(server.sampler.loaded)
        assert pushes == 3  # at the start, after 2 and after 4 updates
        assert server.calls == 3 * [
            "/pause?mode=keep&clear_cache=false",
            "/collective_rpc",
            "/resume",
        ]
        assert [path.name for path in tmp_path.iterdir()] == ["version-3"]
    finally:
        stage.close()
    pushed, ours = server.sampler.loaded[-1], variables()
    for a, b in zip(
        jax.tree.leaves(pushed["params"]), jax.tree.leaves(ours["params"]), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    # Biases are moved together, which chooses as before.
    moved = pushed["balancing"]["biases"] - ours["balancing"]["biases"]
    np.testing.assert_allclose(np.ptp(moved, axis=1), 0, atol=1e-6)


def test_a_failing_server_costs_its_worker_only(serve: Any, tmp_path: Path) -> None:
    good, bad = serve(ScriptedEngine()), serve(ScriptedEngine())
    engines = [engine_of(good, tmp_path / "good"), engine_of(bad, tmp_path / "bad")]
    stage, state = pipeline_of(PIPELINE, engines)
    try:
        state, metrics = stage.step(state)
        assert metrics["workers_running"] == 2
        bad.fail_with = (503, b"out of memory")
        for _ in range(6):
            state, metrics = stage.step(state)
        assert metrics["workers_running"] == 1
        assert "status 503: out of memory" in str(stage.workers[1].failure)
    finally:
        stage.close()


@pytest.mark.parametrize(
    ("fail_with", "said"),
    [
        ((200, b"<html>"), "Expecting value"),
        ((200, b"{}"), "no completion for training"),
        ((200, b'{"choices": []}'), "no completion for training"),
    ],
)
def test_garbage_is_no_response(
    serve: Any, tmp_path: Path, fail_with: tuple[int, bytes], said: str
) -> None:
    server = serve(ScriptedEngine())
    server.fail_with = fail_with
    engine = engine_of(server, tmp_path)
    engine.submit([1, 2], 0)
    with pytest.raises(RLError, match=said):
        drain(engine)
    engine.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routed_experts": None}, "no routed_experts"),
        ({"routed_experts": "?"}, "routed_experts"),
        ({"token_ids": [1, 2, 3]}, "3 token_ids and 2 token_logprobs"),
    ],
)
def test_responses_that_cannot_be_trained_on_are_refused(change: Any, said: str) -> None:
    [drawn] = ScriptedEngine().sample([[1, 2]], [0])
    choice = choice_of(drawn)
    assert parsed_choice(choice, 2, 0).routes.shape == drawn.routes.shape
    with pytest.raises(ValueError, match=said):
        parsed_choice({**choice, **change}, 2, 0)
    with pytest.raises(ValueError, match=r"shape \[4, 2, 1\] for 6 tokens"):
        parsed_choice(choice, 5, 0)


def test_each_worker_needs_its_server() -> None:
    with pytest.raises(RLError, match="each worker needs a URL"):
        PipelineConfig(workers=2, place=WorkerPlace.SERVER, servers=("http://a",), exports="e")


@pytest.mark.slow
def test_a_server_with_a_model_answers_as_the_sampler_beside_it_does_also_with_new_weights(
    serve: Any, tmp_path: Path
) -> None:
    def sampler() -> ForwardSampler:
        return ForwardSampler(
            MODEL, variables(), stop_token=STOP, most_prompt_tokens=4, most_tokens=8
        )

    engine, here = engine_of(serve(sampler()), tmp_path), sampler()
    prompts = [[5, 6, 7], [7, 8, 9, 10], [5]]
    for seed in (0, 1):
        assert engine.load_weights(variables(seed)) == here.load_weights(variables(seed))
        numbers = [engine.submit(prompt, i) for i, prompt in enumerate(prompts)]
        theirs = drain(engine)
        for i, (number, prompt) in enumerate(zip(numbers, prompts, strict=True)):
            [ours] = here.sample([prompt], [i])
            np.testing.assert_array_equal(theirs[number].tokens, ours.tokens)
            np.testing.assert_allclose(theirs[number].log_probs, ours.log_probs, atol=1e-5)
            np.testing.assert_array_equal(theirs[number].routes, ours.routes)
            np.testing.assert_array_equal(theirs[number].versions, ours.versions)
            assert theirs[number].truncated == ours.truncated
    engine.close()
