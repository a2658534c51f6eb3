"""The chat page: one static file, which loads nothing and talks to this server alone."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

PAGE = Path(__file__).with_name("page.html")


@functools.cache
def page_and_headers() -> tuple[str, dict[str, str]]:
    """The page, and headers that forbid everything but its own script and style."""
    text = PAGE.read_text(encoding="utf-8")
    script, style = (_hash(text, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


async def page(request: Request) -> Response:
    """Answers `/`. The page itself is no secret; what it asks for needs the key."""
    text, headers = page_and_headers()
    return HTMLResponse(text, headers=headers)


def _hash(text: str, tag: str) -> str:
    [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
