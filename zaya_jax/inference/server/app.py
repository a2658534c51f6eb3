"""Routes: chat and text completions, models, health, metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.config import DataError
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference import request as engine_request
from zaya_jax.inference.answer import read_answer
from zaya_jax.inference.command import closing_tokens
from zaya_jax.inference.engine import Update
from zaya_jax.inference.local_rollouts import LocalRollouts
from zaya_jax.inference.request import Completion, RequestError
from zaya_jax.inference.server import objects
from zaya_jax.inference.server.metrics import Metrics
from zaya_jax.inference.server.page import page
from zaya_jax.inference.server.protocol import (
    BodyError,
    Call,
    ChatCall,
    TextCall,
    chat_call,
    parse_body,
    text_call,
)
from zaya_jax.inference.server.responses import (
    Refusal,
    error_response,
    fault,
    not_found,
    stream_event,
    unless_disconnected,
)
from zaya_jax.inference.server.rsa_route import rsa_call, rsa_events
from zaya_jax.inference.server.streaming import ChoiceStream
from zaya_jax.inference.service import EngineService, ServiceError

_Event = tuple[int, Update]


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """What the server allows."""

    model: str = "zaya"  # name under which the model is asked for
    api_key: str | None = None  # asked of every request to /v1 if set
    most_waiting: int = 256  # choices that may wait for a slot; beyond that 429
    most_body_bytes: int = 4 << 20  # larger bodies are refused
    body_seconds: float = 60.0  # a body that takes longer to arrive is refused
    default_max_tokens: int = 1_024  # of a chat answer whose request names no number


class Server:
    """The application around one engine. Raises DataError without the chat template's tokens."""

    def __init__(
        self, service: EngineService, tokenizer: Tokenizer, settings: ServerSettings
    ) -> None:
        self.service, self.tokenizer, self.settings = service, tokenizer, settings
        self.metrics = Metrics()
        self.open_choices = 0
        self._template = ChatTemplate(tokenizer)
        self._closing = closing_tokens(tokenizer)

    def application(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/", page),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._guarded(self._models)),
                Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
                Route("/v1/completions", self._guarded(self._text), methods=["POST"]),
                Route("/v1/markovian_rsa", self._guarded(self._rsa), methods=["POST"]),
            ],
            exception_handlers={404: not_found, 405: not_found, Exception: fault},
        )

    # Simple routes

    async def _health(self, request: Request) -> Response:
        failure = self.service.failure
        if failure is not None:
            return JSONResponse({"status": "failed", "reason": str(failure)}, 503)
        return JSONResponse({"status": "ok", "model": self.settings.model})

    async def _metrics(self, request: Request) -> Response:
        engine = self.service.engine
        return PlainTextResponse(
            self.metrics.text({**engine.statistics, "weights_version": engine.version})
        )

    async def _models(self, request: Request) -> Response:
        model = {"id": self.settings.model, "object": "model", "created": 0, "owned_by": "zaya_jax"}
        return JSONResponse({"object": "list", "data": [model]})

    # Completions

    async def _chat(self, request: Request) -> Response:
        body = parse_body(await self._body(request))
        own = chat_call(body, self.settings.default_max_tokens)
        try:
            rendered = self._template.render(
                own.conversation, thinking=own.thinking, generation_prompt=True
            )
        except DataError as error:
            raise BodyError(str(error), "messages") from None
        prompt = tuple(token for segment in rendered.segments for token in segment.ids)
        if own.begun:
            prompt = (*prompt, *self._begun(own))
            own = dataclasses.replace(own, thinking=own.thinking and "</think>" not in own.begun)
        return await self._answer(request, own.call, [prompt], own)

    def _begun(self, own: ChatCall) -> list[int]:
        """Tokens of an answer that is to be continued; its think markers are tokens again."""
        text = own.begun.removeprefix("<think>\n") if own.thinking else own.begun
        reasoning, close, rest = text.partition("</think>")
        ids = self.tokenizer.encode(reasoning)
        if close:
            ids += [self.tokenizer.special_tokens[close], *self.tokenizer.encode(rest)]
        return ids

    async def _text(self, request: Request) -> Response:
        own = text_call(parse_body(await self._body(request)))
        prompts = []
        for prompt in own.prompts:
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            begin = (self.tokenizer.bos_id,) if isinstance(prompt, str) else ()
            prompts.append((*begin, *ids))
        return await self._answer(request, own.call, prompts, own)

    async def _answer(
        self,
        request: Request,
        call: Call,
        prompts: list[tuple[int, ...]],
        own: ChatCall | TextCall,
    ) -> Response:
        requests = self._requests(call, prompts)
        self._admit(call.model, len(requests))
        for each in requests:  # before a stream begins, so that its status can tell
            self.service.engine.check(each)
        head = objects.Head(
            "chat.completion" if isinstance(own, ChatCall) else "text_completion", call.model
        )
        events = self._begin(requests)
        if call.stream:
            chunks = self._chunks(events, head, call, own, len(requests))
            return StreamingResponse(chunks, media_type="text/event-stream")
        collected = asyncio.ensure_future(_collect(events, len(requests)))
        completions = await unless_disconnected(request, collected)
        choices = [self._choice(n, c, call, own) for n, c in enumerate(completions)]
        return JSONResponse(head.whole(choices, completions))

    async def _rsa(self, request: Request) -> Response:
        own = rsa_call(parse_body(await self._body(request)))
        self._admit(own.model, own.settings.population)
        engine = LocalRollouts(self.service, self.tokenizer)

        async def counted() -> AsyncIterator[str]:
            self.open_choices += own.settings.population
            try:
                async for event in rsa_events(engine, own):
                    yield event
            finally:
                self.open_choices -= own.settings.population

        return StreamingResponse(counted(), media_type="text/event-stream")

    def _admit(self, model: str, choices: int) -> None:
        """Refuses another model, and more choices than there is room for."""
        if model != self.settings.model:
            raise Refusal(
                404,
                f"model {model!r} is not served here; this is {self.settings.model!r}",
                "model_not_found",
                "model",
            )
        room = self.service.engine.settings.slots + self.settings.most_waiting
        if self.open_choices + choices > room:
            raise Refusal(429, "too many requests are waiting; try again", "queue_full", None)

    def _requests(self, call: Call, prompts: list[tuple[int, ...]]) -> list[engine_request.Request]:
        seed = call.seed if call.seed is not None else secrets.randbits(62)
        numbers = range(len(prompts) * call.n)
        stops = (*self._closing, *call.sampling.stop_tokens)
        return [
            engine_request.Request(
                prompts[number // call.n],
                dataclasses.replace(call.sampling, seed=(seed + number) % 2**64, stop_tokens=stops),
            )
            for number in numbers
        ]

    def _begin(self, requests: list[engine_request.Request]) -> AsyncIterator[_Event]:
        """Starts all choices; their updates as they come, with the number of the choice.

        They count as open from here on, whether or not anyone ever asks for the updates.
        """
        events: asyncio.Queue[_Event | BaseException] = asyncio.Queue()

        async def follow(number: int, request: engine_request.Request) -> None:
            try:
                async for update in self.service.stream(request):
                    events.put_nowait((number, update))
            except (RequestError, ServiceError) as error:
                events.put_nowait(error)

        def ended(task: asyncio.Task[None]) -> None:
            self.open_choices -= 1

        tasks = [asyncio.create_task(follow(n, own)) for n, own in enumerate(requests)]
        self.open_choices += len(tasks)
        for task in tasks:
            task.add_done_callback(ended)
        return self._events(events, tasks)

    async def _events(
        self, events: asyncio.Queue[_Event | BaseException], tasks: list[asyncio.Task[None]]
    ) -> AsyncIterator[_Event]:
        try:
            left = len(tasks)
            while left:
                event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                if event[1].completion.finish_reason is not None:
                    left -= 1
                    self.metrics.finished(event[1].completion)
                yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _choice(
        self, number: int, completion: Completion, call: Call, own: ChatCall | TextCall
    ) -> dict[str, Any]:
        """One finished choice."""
        if isinstance(own, TextCall):
            logprobs = objects.text_logprobs(self.tokenizer, completion, 0)
            return {
                "index": number,
                "text": completion.text,
                "logprobs": logprobs if call.logprobs else None,
                "finish_reason": objects.finish_reason(completion),
            }
        answer = read_answer(completion.text, thinking=own.thinking, parse_calls=own.parse_tools)
        return {
            "index": number,
            "message": objects.chat_message(answer),
            "logprobs": objects.chat_logprobs(self.tokenizer, completion, 0)
            if call.logprobs
            else None,
            "finish_reason": objects.finish_reason(completion, answer),
        }

    async def _chunks(
        self,
        events: AsyncIterator[_Event],
        head: objects.Head,
        call: Call,
        own: ChatCall | TextCall,
        choices: int,
    ) -> AsyncIterator[str]:
        """Server-sent events; a failure in the middle is the last of them."""
        deltas = [ChoiceStream(self.tokenizer, call, own, number) for number in range(choices)]
        finished: list[Completion] = []
        try:
            async for number, update in events:
                for choice in deltas[number].take(update):
                    yield stream_event(head.chunk(choice))
                if update.completion.finish_reason is not None:
                    finished.append(update.completion)
        except (RequestError, ServiceError) as error:
            yield stream_event(objects.error_object(str(error), "server_error", None, None))
            return
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        if call.include_usage:
            yield stream_event(head.last_chunk(finished))
        yield "data: [DONE]\n\n"

    # Around every request

    async def _body(self, request: Request) -> bytes:
        most, seconds = self.settings.most_body_bytes, self.settings.body_seconds
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        message = f"the body exceeds {most} bytes"
                        raise Refusal(413, message, "body_too_large", None)
        except TimeoutError:
            message = f"the body did not arrive within {seconds:g} s"
            raise Refusal(408, message, "body_timeout", None) from None
        return bytes(body)

    def _guarded(
        self, route: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The route, asking for the key and turning errors into the protocol's objects."""

        async def guarded(request: Request) -> Response:
            response = await self._respond(route, request)
            self.metrics.statuses[response.status_code] += 1
            return response

        return guarded

    async def _respond(
        self, route: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        try:
            self._check_key(request)
            return await route(request)
        except BodyError as error:
            return error_response(400, str(error), "invalid_request_error", error.field, None)
        except (RequestError, DataError) as error:
            return error_response(400, str(error), "invalid_request_error", None, None)
        except Refusal as error:
            return error_response(
                error.status, str(error), "invalid_request_error", error.field, error.code
            )
        except ServiceError as error:
            return error_response(500, str(error), "server_error", None, None)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it; it is counted

    def _check_key(self, request: Request) -> None:
        key = self.settings.api_key
        if key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise Refusal(401, "the API key is missing or wrong", "invalid_api_key", None)


async def _collect(events: AsyncIterator[_Event], choices: int) -> list[Completion]:
    completions: dict[int, Completion] = {}
    try:
        async for number, update in events:
            completions[number] = update.completion
    finally:
        await events.aclose()  # type: ignore[attr-defined]
    return [completions[number] for number in range(choices)]
