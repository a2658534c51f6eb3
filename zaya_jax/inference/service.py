"""The engine for callers that wait: one thread runs it, any number of coroutines ask it."""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from zaya_jax.inference.engine import Engine, Update
from zaya_jax.inference.request import Completion, Request

_Job = Callable[[], None]


class ServiceError(RuntimeError):
    """The engine's thread has ended; the cause is attached."""


class EngineService:
    """Runs an engine in its own thread. Use as a context manager.

    All calls to the engine happen in that thread, between two steps. A coroutine that is cancelled
    takes its request with it.

    Attributes:
      engine: for reading; whatever changes it goes through `call`.
      failure: why the thread ended early; None while all is well.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._listeners: dict[int, Callable[[Update | ServiceError], None]] = {}
        self.failure: ServiceError | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def __enter__(self) -> EngineService:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._jobs.put(None)
        self._thread.join()

    async def stream(self, request: Request) -> AsyncIterator[Update]:
        """Updates of one request; the last one has a finish reason.

        Raises:
          RequestError: when the engine refuses it.
          ServiceError: when the engine has failed.
        """
        loop = asyncio.get_running_loop()
        updates: asyncio.Queue[Update | BaseException] = asyncio.Queue()

        def tell(update: Update | BaseException) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, update)

        number: list[int] = []

        def submit() -> None:
            try:
                self._check_running()
                number.append(self.engine.submit(request))
            except (ValueError, ServiceError) as error:
                tell(error)
                return
            self._listeners[number[0]] = tell

        def cancel() -> None:
            if number and number[0] in self._listeners:
                del self._listeners[number[0]]
                self.engine.cancel(number[0])

        self._put(submit)
        finished = False
        try:
            while not finished:
                update = await updates.get()
                if isinstance(update, BaseException):
                    finished = True
                    raise update
                finished = update.completion.finish_reason is not None
                yield update
        finally:
            if not finished:
                self._jobs.put(cancel)

    async def complete(self, request: Request) -> Completion:
        """The finished answer to one request; errors as for `stream`."""
        async for update in self.stream(request):
            completion = update.completion
        return completion

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Runs a function on the engine between two steps, for example to change its weights."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def job() -> None:
            try:
                self._check_running()
                result = function(self.engine)
            except Exception as error:  # goes to the caller, whatever it is
                loop.call_soon_threadsafe(answer.set_exception, error)
            else:
                loop.call_soon_threadsafe(answer.set_result, result)

        self._put(job)
        return await answer

    def _put(self, job: _Job) -> None:
        self._check_running()
        self._jobs.put(job)

    def _check_running(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while self._do_jobs():
                self._pass_on(self.engine.step())
        except Exception as error:  # without its thread everyone would wait for ever
            self.failure = ServiceError(f"the engine failed: {error}")
            self.failure.__cause__ = error
            for tell in self._listeners.values():
                tell(self.failure)
            while (job := self._jobs.get()) is not None:  # asked for while it failed
                job()

    def _pass_on(self, updates: list[Update]) -> None:
        for update in updates:
            tell = self._listeners.get(update.number)
            if tell is None:
                continue
            if update.completion.finish_reason is not None:
                del self._listeners[update.number]
            tell(_as_it_is_now(update))

    def _do_jobs(self) -> bool:
        """Does what was asked for, waiting for something while idle; False at the end."""
        while True:
            try:
                job = self._jobs.get(block=self.engine.idle)
            except queue.Empty:
                return True
            if job is None:
                return False
            job()


def _as_it_is_now(update: Update) -> Update:
    """The update with a copy of its completion, to which the engine adds while others read."""
    completion = update.completion
    if completion.finish_reason is not None:
        return update
    names = ("tokens", "log_probabilities", "raw_log_probabilities", "top", "versions")
    lists: dict[str, Any] = {name: list(getattr(completion, name)) for name in names}
    return update._replace(completion=dataclasses.replace(completion, **lists))
