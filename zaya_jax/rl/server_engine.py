"""An engine behind an HTTP server that speaks as vLLM does, in place of ours.

For each response, `POST {url}/v1/completions` with

    {"model": NAME, "prompt": [ids], "max_tokens": N, "seed": S, "temperature": 1, "top_p": 1,
     "logprobs": 0, "stop_token_ids": [STOP], "return_token_ids": true}

and of its answer `choices[0]`: `token_ids` (the stop token among them), `logprobs.token_logprobs`,
`finish_reason`, and `routed_experts`, the base64 text of a NumPy file [tokens, layers, 1] with the
raw classes of all tokens that were fed, those of the prompt first (vLLM's
`enable_return_routed_experts`, which needs a build that records the skip class).

New weights are written as a released folder that both sides see, between `POST {url}/pause?mode=
keep&clear_cache=false` and `POST {url}/resume`, and loaded by `POST {url}/collective_rpc` with
`{"method": "reload_weights", "kwargs": {"weights_path": FOLDER}}`; responses under way go on with
them. Tokens are tagged with the weights their response began with: the server does not say when it
changed them, so that ages are never too small.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.checkpoint.export import export_variables
from zaya_jax.config import ModelConfig
from zaya_jax.rl.environments.protocol import Problem
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sampler import Sampled

_STEP_SECONDS = 0.5  # longest wait for a response before new weights can go in


class ServerEngine:
    """See the module. A `RolloutEngine`, used from one thread; requests have threads of their own.

    Whatever the server does wrong ends the worker: its groups are lost, other workers go on.
    """

    def __init__(
        self,
        url: str,
        config: ModelConfig,
        exports: Path,
        *,
        stop_token: int,
        most_tokens: int,
        model: str = "policy",
        most_requests: int = 256,
        seconds: float = 3_600.0,
    ) -> None:
        """Asks nothing yet.

        Args:
          url: of the server, without a path.
          config: of the model, for exports.
          exports: folder for weights, which the server sees under the same name.
          stop_token: ends a response.
          most_tokens: longest response.
          model: name the server knows the model by.
          most_requests: sent at the same time.
          seconds: for one request, and for loading weights.
        """
        self._url, self._config, self._exports = url.rstrip("/"), config, exports
        self._stop, self._most, self._model = stop_token, most_tokens, model
        self._seconds, self._version, self._count = seconds, 0, 0
        self._pool = ThreadPoolExecutor(most_requests, thread_name_prefix="completion")
        self._under_way: dict[Future[Sampled], int] = {}

    @property
    def idle(self) -> bool:
        """Whether no response is under way."""
        return not self._under_way

    def load_weights(self, variables: dict[str, Any]) -> int:
        """See `RolloutEngine`.

        Raises:
          RLError: when the server does not take them.
        """
        folder = self._exports / f"version-{self._version + 1}"
        shutil.rmtree(folder, ignore_errors=True)  # of a run before this one
        export_variables(self._config, variables, folder)
        self._post("/pause?mode=keep&clear_cache=false", {})
        path = {"weights_path": str(folder.resolve())}
        self._post("/collective_rpc", {"method": "reload_weights", "kwargs": path})
        self._post("/resume", {})
        shutil.rmtree(self._exports / f"version-{self._version}", ignore_errors=True)
        self._version += 1
        return self._version

    def submit(self, prompt: Sequence[int], seed: int) -> int:
        """See `RolloutEngine`."""
        self._count += 1
        answer = self._pool.submit(self._complete, list(prompt), seed, self._version)
        self._under_way[answer] = self._count
        return self._count

    def step(self) -> list[tuple[int, Sampled]]:
        """Waits until a response ends, or half a second.

        Raises:
          RLError: when a request failed.
        """
        done, _ = wait(self._under_way, timeout=_STEP_SECONDS, return_when=FIRST_COMPLETED)
        return [(self._under_way.pop(one), one.result()) for one in done]

    def scores(self, problem: Problem, responses: Sequence[str]) -> None:
        """See `RolloutEngine`: responses are scored by whoever asks."""

    def close(self) -> None:
        """Gives up what is under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _complete(self, prompt: list[int], seed: int, version: int) -> Sampled:
        answer = self._post(
            "/v1/completions",
            {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": self._most,
                "seed": seed % 2**63,
                "temperature": 1.0,
                "top_p": 1.0,
                "logprobs": 0,
                "stop_token_ids": [self._stop],
                "return_token_ids": True,
            },
        )
        try:
            return parsed_choice(answer["choices"][0], len(prompt), version)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RLError(f"{self._url}: no completion for training: {error!r}") from error

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as response:
                text = response.read()
            return dict(json.loads(text)) if text.strip() else {}
        except urllib.error.HTTPError as error:
            detail = error.read()[:200].decode(errors="replace")
            raise RLError(f"{self._url}{path}: status {error.code}: {detail}") from error
        except (OSError, ValueError, TypeError) as error:
            raise RLError(f"{self._url}{path}: {error}") from error


def parsed_choice(choice: Mapping[str, Any], prompt_tokens: int, version: int) -> Sampled:
    """A response as the trainer takes it.

    Args:
      choice: of the completion.
      prompt_tokens: length of its prompt.
      version: of the weights it began with.

    Raises:
      KeyError, TypeError, ValueError: when something is missing or does not fit together.
    """
    tokens = np.array(choice["token_ids"], np.int32)
    log_probs = np.array(choice["logprobs"]["token_logprobs"], np.float32)
    if not len(tokens) == len(log_probs) > 0:
        raise ValueError(f"{len(tokens)} token_ids and {len(log_probs)} token_logprobs")
    if not choice.get("routed_experts"):
        raise ValueError("no routed_experts; start the server so that it returns them")
    try:
        file = base64.b64decode(choice["routed_experts"], validate=True)
        routes = np.load(io.BytesIO(file), allow_pickle=False)
    except (binascii.Error, EOFError) as error:
        raise ValueError(f"routed_experts: {error}") from error
    fed = prompt_tokens + len(tokens) - 1
    if routes.ndim != 3 or routes.shape[2] != 1 or len(routes) < fed:
        raise ValueError(
            f"routed_experts of shape {list(routes.shape)} for {fed} tokens that were fed; "
            "expected [tokens, layers, 1] with those of the prompt"
        )
    return Sampled(
        tokens=tokens,
        log_probs=np.minimum(log_probs, 0.0),
        versions=np.full(len(tokens), version, np.int32),
        routes=routes[:fed, :, 0].astype(np.uint8),
        truncated=choice["finish_reason"] != "stop",
    )
