"""Access control: only pages and programs on this machine that know the token are answered."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost")
HEADER = b"x-operant-token"
SAME_ORIGIN = (b"same-origin", b"none")  # what a browser sends for requests of our own page or of the user
POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class AccessControl:
    """Rejects requests without the token, and requests from pages of another origin.

    A browser that opens ``/?token=...`` keeps the token in a cookie that scripts cannot read and other sites cannot
    send. Programs send it in the header ``X-Operant-Token``. Requests under another host name that leads to this
    machine (DNS rebinding) are rejected, whatever the token.
    """

    def __init__(self, app: App, token: str) -> None:
        self.app, self.token = app, token.encode()
        self.cookie = f"operant-{hashlib.sha256(self.token).hexdigest()[:8]}"  # one per server: ports share cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif rejection := self.rejection(scope):
            await _send_text(send, *rejection)
        else:
            await self.app(scope, receive, self._with_headers(scope, send))

    def rejection(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason if a request is rejected, otherwise None."""
        headers = _headers(scope)
        host = headers.get(b"host", b"").decode("latin-1")
        if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
            return 421, "This server only answers under its own name; open the address that `operant triage` printed."
        origin = headers.get(b"origin")
        foreign = origin is not None and origin != b"http://" + host.encode("latin-1")
        if foreign or (headers.get(b"sec-fetch-site", b"none") not in SAME_ORIGIN and scope["path"] != "/"):
            return 403, "Requests from pages of another origin are rejected."
        by_cookie = self._is_token(self._cookie(headers))
        by_header = self._is_token(headers.get(HEADER, b""))
        if scope["method"] not in ("GET", "HEAD") and not (by_header or (by_cookie and origin is not None)):
            return 403, "Only the page itself can make changes here."
        if not (by_cookie or by_header or self._opened(scope)):
            return 403, "The token is missing; open the address that `operant triage` printed, which contains it."
        return None

    def _is_token(self, token: bytes) -> bool:
        return compare_digest(token, self.token)

    def _cookie(self, headers: dict[bytes, bytes]) -> bytes:
        try:
            jar = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return b""
        found = jar.get(self.cookie)
        return b"" if found is None else found.value.encode("latin-1", "replace")

    def _opened(self, scope: Scope) -> bool:
        """Whether this is the printed address, with the token."""
        if scope["path"] != "/" or scope["method"] not in ("GET", "HEAD"):
            return False
        given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None).get("token", [""])
        return self._is_token(given[0].encode("utf-8", "replace"))

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        opened = self._opened(scope)
        cookie = f"{self.cookie}={self.token.decode()}; Path=/; HttpOnly; SameSite=Strict".encode()

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                more = [*HEADERS, (b"set-cookie", cookie)] if opened else HEADERS
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        return sending


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers; one that is sent twice is ambiguous and counts as empty."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found[name.lower()] = b"" if name.lower() in found else value
    return found


async def _send_text(send: Send, status: int, text: str) -> None:
    content = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *HEADERS]})
    await send({"type": "http.response.body", "body": content})
