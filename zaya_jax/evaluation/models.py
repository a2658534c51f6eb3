"""Whom the questions are put to: our engine, or any server that speaks the OpenAI protocol."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.evaluation.settings import SamplingConfig
from zaya_jax.inference.answer import read_answer
from zaya_jax.inference.command import closing_tokens
from zaya_jax.inference.local_rollouts import LocalRollouts
from zaya_jax.inference.request import FinishReason, Request, RequestError, SamplingParams
from zaya_jax.inference.rollouts import RolloutEngine
from zaya_jax.inference.service import EngineService


class SampleError(ValueError):
    """One answer could not be had now; asking again may help."""


class RefusedError(ValueError):
    """The model cannot take this question, however often it is asked: too long, say."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One answer.

    Attributes:
      answer: what came after the thinking; "" where it never came.
      reasoning: the thinking.
      new_tokens: generated, thinking included.
      prompt_tokens: read.
      cut: whether the budget of tokens ended it.
    """

    answer: str
    reasoning: str
    new_tokens: int
    prompt_tokens: int
    cut: bool


@runtime_checkable
class Model(Protocol):
    """What an evaluation needs of a model."""

    @property
    def identity(self) -> str:
        """Names it in results; runs are only resumed with the same one."""
        ...

    async def sample(self, prompt: str, sampling: SamplingConfig, seed: int) -> Sample:
        """One answer to a user's turn.

        Raises:
          SampleError: when it failed.
          RefusedError: when it can never work.
        """
        ...

    def rollouts(self, temperature: float, top_p: float) -> RolloutEngine:
        """The engine of Markovian RSA."""
        ...


class LocalModel:
    """Our engine."""

    def __init__(self, identity: str, service: EngineService, tokenizer: Tokenizer) -> None:
        """Takes a started service and the tokenizer of its model."""
        self.identity, self._service, self._tokenizer = identity, service, tokenizer
        self._template = ChatTemplate(tokenizer)
        self._closing = closing_tokens(tokenizer)

    async def sample(self, prompt: str, sampling: SamplingConfig, seed: int) -> Sample:
        """See `Model`."""
        rendered = self._template.render(
            Conversation((Message("user", prompt),)),
            thinking=sampling.thinking,
            generation_prompt=True,
        )
        ids = tuple(token for segment in rendered.segments for token in segment.ids)
        params = SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed,
            stop_tokens=self._closing,
        )
        try:
            completion = await self._service.complete(Request(ids, params))
        except RequestError as error:
            raise RefusedError(str(error)) from error
        text = self._tokenizer.decode(completion.tokens, keep_special=True)
        for token in self._closing:
            text = text.removesuffix(self._tokenizer.decode([token], keep_special=True))
        answer = read_answer(text, thinking=sampling.thinking, parse_calls=False)
        cut = completion.finish_reason is FinishReason.LENGTH
        return Sample(answer.content, answer.reasoning, len(completion.tokens), len(ids), cut)

    def rollouts(self, temperature: float, top_p: float) -> RolloutEngine:
        """See `Model`."""
        return LocalRollouts(self._service, self._tokenizer, temperature=temperature, top_p=top_p)


class OpenAIModel:
    """A server. Needs the `openai` package, of the extra `serve`."""

    def __init__(self, url: str, model: str, *, api_key: str = "none", timeout: float = 3_600.0):
        """Asks nothing yet.

        Raises:
          EvaluationError: without the `openai` package.
        """
        try:
            import openai
        except ImportError as error:
            raise EvaluationError(
                "asking a server needs the openai package: pip install 'zaya_jax[serve]'"
            ) from error
        self._library: Any = openai
        self._url, self._model, self._key = url, model, api_key
        self._client = openai.AsyncOpenAI(
            base_url=url, api_key=api_key, timeout=timeout, max_retries=4
        )
        self.identity = f"{model} at {url}"

    async def sample(self, prompt: str, sampling: SamplingConfig, seed: int) -> Sample:
        """See `Model`. Fields that the protocol does not know are sent only where they matter."""
        extra: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
        if not sampling.thinking:
            extra["chat_template_kwargs"] = {"enable_thinking": False}
        try:
            response = await self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=seed,
                extra_body=extra or None,
            )
        except self._library.OpenAIError as error:
            raise self._translated(error) from error
        choice = response.choices[0]
        content = choice.message.content or ""
        reasoning = getattr(choice.message, "reasoning_content", None) or ""
        if not reasoning and "</think>" in content:  # a server that does not split it off
            split = read_answer(content, thinking=True, parse_calls=False)
            reasoning, content = split.reasoning, split.content
        usage, cut = response.usage, choice.finish_reason == "length"
        if usage is None:
            raise EvaluationError(f"{self._url} does not count tokens (`usage` is missing)")
        return Sample(content, reasoning, usage.completion_tokens, usage.prompt_tokens, cut)

    def rollouts(self, temperature: float, top_p: float) -> RolloutEngine:
        """See `Model`."""
        from zaya_jax.inference.openai_rollouts import OpenAIRollouts

        return OpenAIRollouts(
            self._url, self._model, api_key=self._key, temperature=temperature, top_p=top_p
        )

    def _translated(self, error: Exception) -> Exception:
        """What a failure of the client means here."""
        library, message = self._library, f"{self._url}: {error}"
        if isinstance(error, library.BadRequestError | library.UnprocessableEntityError):
            return RefusedError(message)
        fatal = (
            library.AuthenticationError,
            library.PermissionDeniedError,
            library.NotFoundError,
        )
        return EvaluationError(message) if isinstance(error, fatal) else SampleError(message)
