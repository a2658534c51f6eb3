"""Answers that are no completion: errors, refusals, lost clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from zaya_jax.inference.server import objects


class Refusal(Exception):  # noqa: N818 an answer, not a failure
    """What is wrong with a request that is not in its body's fields alone.

    Attributes:
      status: of HTTP.
      code: for programs.
      field: of the body, if one is to blame.
    """

    def __init__(self, status: int, message: str, code: str, field: str | None) -> None:
        super().__init__(message)
        self.status, self.code, self.field = status, code, field


def error_response(
    status: int, message: str, kind: str, field: str | None, code: str | None
) -> JSONResponse:
    """An error object; a full queue also says when to come back."""
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse(objects.error_object(message, kind, field, code), status, headers)


async def not_found(request: Request, error: Any) -> Response:
    """For paths and methods that there are not."""
    message = f"{request.method} {request.url.path} is not served here"
    return error_response(error.status_code, message, "invalid_request_error", None, None)


async def fault(request: Request, error: Exception) -> Response:
    """For faults of ours; they go to the log as well."""
    message = "the server has a fault; its log says more"
    return error_response(500, message, "server_error", None, None)


def stream_event(content: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


async def unless_disconnected(request: Request, work: asyncio.Future[Any]) -> Any:
    """Waits for the work; gives it up when the client goes away.

    Raises:
      ClientDisconnect: when it did.
    """
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientDisconnect
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
