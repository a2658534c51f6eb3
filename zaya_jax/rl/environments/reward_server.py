"""A reward model behind any server that speaks the OpenAI chat protocol.

One POST to `{url}/chat/completions` for each response:

    {"model": MODEL, "temperature": 0, "max_tokens": 1024, "messages": [
       {"role": "user", "content": PROMPT},
       {"role": "assistant", "content": RESPONSE},
       {"role": "user", "content": INSTRUCTION}]}

The completion, after any thinking, must be a number from 0 to 10 and nothing else; a tenth of it is
the reward. A trained scalar model fits behind the same request: it ignores the last message and
answers with its score. Connection faults, refusals for load and server errors are tried again
within the time limit. Whatever else happens, text that is no such number included, is an error of
the environment and not a bad score: the group is dropped.

Needs the `openai` package, of the extra `rl`.
"""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, strip_thinking
from zaya_jax.rl.errors import RLError

INSTRUCTION = (
    "Rate the answer above for how well it serves the person who asked: correctness, helpfulness, "
    "clarity. Reply with one number from 0 (useless) to 10 (could not be better), and nothing else."
)
MOST_SCORE = 10.0
MOST_TOKENS = 1_024  # room for a model that thinks before it rates


class RewardServer:
    """A `RewardModel` over HTTP; calls from several threads run side by side."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str = "none",
        seconds: float = 60.0,
        instruction: str = INSTRUCTION,
    ) -> None:
        """Asks nothing yet.

        Args:
          url: of the server, usually ending in /v1.
          model: name it knows the model by.
          api_key: that it wants, if any.
          seconds: for one score, all tries together.
          instruction: the last message; must ask for a number from 0 to 10.

        Raises:
          RLError: without the `openai` package, or for a limit that is not positive.
        """
        try:
            import openai
        except ImportError as error:
            raise RLError(
                "a reward server needs the openai package: pip install 'zaya_jax[rl]'"
            ) from error
        if not seconds > 0:
            raise RLError(f"reward server {url}: seconds={seconds!r}: must be positive")
        self._error: type[Exception] = openai.OpenAIError
        self._url, self._model, self._seconds = url, model, seconds
        self._instruction = instruction
        self._client = openai.AsyncOpenAI(
            base_url=url, api_key=api_key, timeout=seconds, max_retries=2
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="reward-server", daemon=True
        )
        self._thread.start()

    def score(self, prompt: str, response: str) -> float:
        """See `RewardModel`."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(prompt, response), self._loop)
        try:
            text = asked.result()
        except TimeoutError as error:
            raise self._broken(f"no answer for {self._seconds:g} s") from error
        except self._error as error:
            raise self._broken(f"{type(error).__name__}: {error}") from error
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise self._broken(f"no chat completion: {error}") from error
        score = parsed_score(text)
        if score is None:
            raise self._broken(f"answered {text[:80]!r}, which is no number from 0 to 10")
        return score

    def close(self) -> None:
        """Ends the connections; no call may follow."""
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _ask(self, prompt: str, response: str) -> str:
        messages: Any = [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": response},
            {"role": "user", "content": self._instruction},
        ]
        # The client's own limit is for each read: a server that drips would never end.
        completion = await asyncio.wait_for(
            self._client.chat.completions.create(
                model=self._model, messages=messages, temperature=0, max_tokens=MOST_TOKENS
            ),
            self._seconds,
        )
        content = completion.choices[0].message.content
        if not isinstance(content, str):
            raise TypeError(f"content is {content!r}")
        return content

    def _broken(self, reason: str) -> BrokenEnvironmentError:
        return BrokenEnvironmentError(f"reward model {self._model} at {self._url}: {reason}")


def parsed_score(text: str) -> float | None:
    """A tenth of the number that the text is, thinking aside; None for anything else."""
    answer = strip_thinking(text)
    found = re.fullmatch(r"\s*(\d{1,2}(?:\.\d+)?)(?:\s*/\s*10)?\s*", answer or "")
    if found is None or float(found[1]) > MOST_SCORE:
        return None
    return float(found[1]) / MOST_SCORE
