"""Rollouts by any server that speaks the OpenAI chat protocol, ours among them.

The server must return log-probabilities of tokens: their texts are what budgets and tails are
counted in. Answering after a think block that was closed by force uses `continue_final_message`,
which vLLM, SGLang and our server know. Needs the `openai` package.
"""

from __future__ import annotations

from typing import Any

import openai

from zaya_jax.data.aggregation_prompt import Piece, Tokens
from zaya_jax.inference.rollouts import Budget, Rollout, RolloutError

_OPEN, _CLOSE = "<think>\n", "\n</think>\n\n"


class OpenAIRollouts:
    """A `RolloutEngine` over HTTP."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> None:
        """A client of the server at `base_url`, which usually ends in /v1."""
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
        self._options = {"model": model, "temperature": temperature, "top_p": top_p}

    async def rollout(self, prompt: tuple[Piece, ...], budget: Budget, seed: int) -> Rollout:
        """Thinks, and answers where asked to; see `RolloutEngine`."""
        user = {"role": "user", "content": "".join(piece.text for piece in prompt)}
        thought = await self._ask(
            [user], budget.thinking, seed, logprobs=True, stop=[_CLOSE.strip("\n")]
        )
        reasoning, closed = _reasoning(thought)
        usage, answer = thought.usage, ""
        new, prefill = usage.completion_tokens, usage.prompt_tokens
        peak = new + prefill
        if budget.answer:
            opened = {"role": "assistant", "content": _OPEN + "".join(reasoning) + _CLOSE}
            extra = {"continue_final_message": True, "add_generation_prompt": False}
            more = await self._ask([user, opened], budget.answer, seed + 1, extra_body=extra)
            answer = more.choices[0].message.content or ""
            new += more.usage.completion_tokens
            prefill += more.usage.prompt_tokens
            peak = more.usage.prompt_tokens + more.usage.completion_tokens
        return Rollout(reasoning, closed, answer, new, usage.prompt_tokens, prefill, peak)

    def text_of(self, tokens: Tokens) -> str:
        """Texts of tokens one after the other."""
        return "".join(str(token) for token in tokens)

    def prompt_limit(self, prompt: tuple[Piece, ...]) -> None:
        """The server's template is not known here."""
        return

    async def _ask(self, messages: list[Any], most: int, seed: int, **more: Any) -> Any:
        create: Any = self._client.chat.completions.create
        try:
            return await create(
                messages=messages, max_tokens=most, seed=seed, **self._options, **more
            )
        except openai.OpenAIError as error:
            raise RolloutError(f"{self._client.base_url}: {error}") from error


def _reasoning(thought: Any) -> tuple[tuple[str, ...], bool]:
    """Texts of the reasoning tokens, and whether the model ended it itself."""
    choice = thought.choices[0]
    if choice.logprobs is None or choice.logprobs.content is None:
        raise RolloutError(
            "the server returns no log-probabilities of tokens, by which tails are counted; "
            "switch them on there"
        )
    tokens = [entry.token for entry in choice.logprobs.content]
    closed = choice.finish_reason == "stop"
    message = choice.message
    text = (getattr(message, "reasoning_content", None) or "") + (message.content or "")
    if closed and tokens and tokens[-1] not in text:
        tokens.pop()  # the token that closed it
    return tuple(tokens), closed
