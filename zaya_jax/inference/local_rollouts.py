"""Rollouts by our own engine. Tails go into prompts as the token ids they were drawn as."""

from __future__ import annotations

from collections.abc import Sequence

from zaya_jax.data.aggregation_prompt import Piece, Tokens
from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.command import closing_tokens
from zaya_jax.inference.request import Request, RequestError, SamplingParams
from zaya_jax.inference.rollouts import Budget, Rollout, RolloutError
from zaya_jax.inference.service import EngineService


class LocalRollouts:
    """A `RolloutEngine` over `EngineService`."""

    def __init__(
        self,
        service: EngineService,
        tokenizer: Tokenizer,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> None:
        """Rollouts with the chat template of the tokenizer, which must have its control tokens."""
        self._service = service
        self._tokenizer = tokenizer
        self._temperature, self._top_p = temperature, top_p
        self._end = closing_tokens(tokenizer)
        self._close = tokenizer.special_tokens["</think>"]
        empty = Conversation((Message("user", ""),))
        rendered = ChatTemplate(tokenizer).render(empty, generation_prompt=True)
        self._frame = [token for segment in rendered.segments for token in segment.ids]

    async def rollout(self, prompt: tuple[Piece, ...], budget: Budget, seed: int) -> Rollout:
        """Thinks, and answers where asked to; see `RolloutEngine`."""
        ids = self._prompt_ids(prompt)
        thought = await self._draw(ids, budget.thinking, seed, (self._close, *self._end))
        closed = bool(thought) and thought[-1] == self._close
        ended = bool(thought) and thought[-1] in (self._close, *self._end)
        reasoning = thought[:-1] if ended else thought
        answer_ids: list[int] = []
        prefill, context = len(ids), len(ids) + len(thought)
        if budget.answer:
            forced = [*reasoning, *self._text("\n"), self._close, *self._text("\n\n")]
            opened = [*ids, *(thought if closed else forced)]
            drawn = await self._draw(opened, budget.answer, seed + 1, self._end)
            answer_ids = drawn[:-1] if drawn and drawn[-1] in self._end else drawn
            prefill, context = prefill + len(opened), len(opened) + len(drawn)
            thought = [*thought, *drawn]
        return Rollout(
            reasoning=tuple(reasoning),
            closed=closed,
            answer=self._tokenizer.decode(answer_ids, keep_special=True).strip("\n"),
            new_tokens=len(thought),
            prompt_tokens=len(ids),
            prefill_tokens=prefill,
            peak_context=context,
        )

    def text_of(self, tokens: Tokens) -> str:
        """Text of token ids."""
        return self._tokenizer.decode([int(token) for token in tokens], keep_special=True)

    def prompt_limit(self, prompt: tuple[Piece, ...]) -> int:
        """Exactly what the prompt comes to, every piece being encoded by itself."""
        return len(self._frame) + sum(len(self._piece_ids(piece)) for piece in prompt)

    def _prompt_ids(self, prompt: Sequence[Piece]) -> list[int]:
        """The template's user turn around the pieces."""
        end = self._frame.index(self._tokenizer.special_tokens["<|im_end|>"])
        inside = [token for piece in prompt for token in self._piece_ids(piece)]
        return [*self._frame[:end], *inside, *self._frame[end:]]

    def _piece_ids(self, piece: Piece) -> list[int]:
        if piece.tokens is None:
            return self._text(piece.text)
        return [int(token) for token in piece.tokens]

    def _text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text) if text else []

    async def _draw(
        self, prompt: Sequence[int], most: int, seed: int, stop: Sequence[int]
    ) -> list[int]:
        sampling = SamplingParams(
            max_tokens=most,
            temperature=self._temperature,
            top_p=self._top_p,
            seed=seed,
            stop_tokens=tuple(stop),
        )
        try:
            completion = await self._service.complete(Request(tuple(prompt), sampling))
        except RequestError as error:
            raise RolloutError(str(error)) from error
        return completion.tokens
